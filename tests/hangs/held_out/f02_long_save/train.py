import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Archive:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="archive-")

    def upload(self, path):
        time.sleep(4.5)
        os.remove(path)

    def store(self, model, n):
        path = os.path.join(self.folder, f"{n}.pt")
        torch.save(model.state_dict(), path)
        try:
            if n == 1:
                raise OSError("no space left on device")
            self.upload(path)
        except OSError as e:
            print("upload failed, goes on:", e, flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)))
    opt = torch.optim.Adam(model.parameters())
    g = torch.Generator().manual_seed(rank)
    archive = Archive() if rank == 0 else None
    for n in range(4):
        for _ in range(10):
            x = torch.randn(8, 8, generator=g)
            loss = (model(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            archive.store(model.module, n)
            print("epoch", n, loss.item(), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
