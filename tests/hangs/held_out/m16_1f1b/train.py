"""Hand-written 1F1B pipeline over four stages."""
import torch
import torch.distributed as dist

from data import EpochData
from schedule import PipeRunner
from stage import Stage


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world)
    data = EpochData(size=92, batch=32)
    runner = PipeRunner(stage, rank, world, micro=4)
    opt = torch.optim.SGD(stage.parameters(), lr=0.05)
    for epoch in range(2):
        for step, (x, y) in enumerate(data.epoch(epoch, with_target=rank == world - 1)):
            opt.zero_grad()
            loss = runner.run(x, y)
            opt.step()
            if loss is not None:
                print(f"epoch {epoch} step {step} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
