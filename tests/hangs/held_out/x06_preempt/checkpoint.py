import os
import tempfile

import torch
import torch.distributed as dist


class Checkpointer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.dir = tempfile.mkdtemp(prefix="ckpt")

    def save(self, step):
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": self.model.state_dict(), "opt": self.opt.state_dict()},
                       os.path.join(self.dir, f"{step}.pt"))
        dist.barrier()
