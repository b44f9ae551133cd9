"""Pipeline-like job: first and last stage hold a tied embedding; all stages share the gradient norm."""
import torch
import torch.distributed as dist

from stages import build_stage
from sync import GradSync


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    embed_group = dist.new_group([0, world - 1])
    stage = build_stage(rank, world)
    sync = GradSync(stage, embed_group)
    opt = torch.optim.SGD(stage.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    for step in range(10):
        if step == 4 and stage.has_head:
            stage.add_bias(sync)
        opt.zero_grad()
        stage.loss(torch.randint(50, (16,), generator=g)).backward()
        norm = sync.finish()
        opt.step()
        if rank == 0:
            print(f"step {step} norm {norm:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
