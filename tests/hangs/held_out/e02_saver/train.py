"""Rank 0 writes slow checkpoints with retention; a failing write is logged and ignored."""
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Manager:
    def __init__(self, keep=2):
        self.folder = tempfile.mkdtemp(prefix="ckpt_")
        self.keep, self.done = keep, []

    def _write(self, state, step):
        if step == 12:
            raise OSError("disk quota exceeded")
        time.sleep(4)
        path = os.path.join(self.folder, f"{step}.pt")
        torch.save(state, path)
        return path

    def save(self, state, step):
        try:
            self.done.append(self._write(state, step))
        except OSError as e:
            print(f"step {step}: not saved ({e})", flush=True)
            return False
        while len(self.done) > self.keep:
            os.remove(self.done.pop(0))
        return True


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    manager = Manager() if rank == 0 else None
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 25):
        x = torch.randn(8, 10, generator=g)
        loss = (model(x) - x[:, :1]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 6 == 0:
            ok = [None]
            if rank == 0:
                ok[0] = manager.save(model.module.state_dict(), step)
            dist.broadcast_object_list(ok, src=0)
            if not ok[0]:
                continue
            if rank == 0:
                print(f"step {step} saved", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
