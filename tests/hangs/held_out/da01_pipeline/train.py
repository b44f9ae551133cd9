import torch
import torch.distributed as dist

from engine import Engine
from stages import Stage, microbatches

STEPS = 8
MICRO = 4


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world)
    opt = torch.optim.SGD(stage.parameters(), lr=0.01)
    engine = Engine(stage, rank, world, opt)
    for step in range(STEPS):
        loss = engine.run(microbatches(step, MICRO))
        if stage.last:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
