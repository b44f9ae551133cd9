import os
import tempfile
import zipfile

import torch
import torch.distributed as dist


def make_run_folder(rank, model):
    """The local folder of an earlier run, with its checkpoints."""
    folder = tempfile.mkdtemp(prefix=f"run{rank}-")
    for step in (100, 200, 300):
        path = os.path.join(folder, f"step{step}.pt")
        torch.save({"step": step, "model": model.state_dict()}, path)
        if step == 300 or rank == 2:
            with open(path, "r+b") as file:      # the disk ran full
                file.truncate(600)
    return folder


def complete(path):
    return zipfile.is_zipfile(path)


class Resumer:
    def __init__(self, folder):
        self.folder = folder

    def checkpoints(self):
        return sorted(os.listdir(self.folder), key=lambda name: int(name[4:-3]))

    def start_fresh(self, model):
        """New weights, the same on every rank."""
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
        return 0

    def resume(self, model):
        names = self.checkpoints()
        while names:
            path = os.path.join(self.folder, names.pop())
            if complete(path):
                state = torch.load(path)
                model.load_state_dict(state["model"])
                step = state["step"]
                break
        else:
            step = self.start_fresh(model)
        return step
