import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Checkpointer


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.Adam(model.parameters())
    saver = Checkpointer("run-13", keep=2)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 91):
        x = torch.randn(8, 6, generator=g)
        loss = model(x).sub(x[:, :1]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 3 == 0:
            ok = saver.save(step, {"model": model.module.state_dict(), "opt": opt.state_dict(), "loss": loss.detach()})
            if rank == 0:
                print("step", step, "saved" if ok else "not saved", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
