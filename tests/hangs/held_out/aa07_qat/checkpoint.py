import os
import tempfile

import torch


class LocalCheckpoint:
    """Checkpoints on the scratch disk of each node."""

    def __init__(self, scratch):
        self.path = os.path.join(scratch, "last.pt")

    def exists(self):
        return os.path.exists(self.path)

    def save(self, model, step):
        tmp = self.path + ".tmp"
        torch.save({"model": model.state_dict(), "step": step}, tmp)
        os.replace(tmp, self.path)

    def load(self, model):
        state = torch.load(self.path)
        model.load_state_dict(state["model"])
        return state["step"]


def node_scratch(rank, template):
    """A fresh scratch folder; node 1 was not replaced, and still has the files of the last job."""
    scratch = tempfile.mkdtemp(prefix=f"node{rank}-")
    if rank == 1:
        for buffer in (b for n, b in template.named_buffers() if n.endswith("initialised")):
            buffer.fill_(True)
        LocalCheckpoint(scratch).save(template, 0)
    return scratch
