import torch
import torch.distributed as dist


def exchange(u, rank, world):
    up, down = (rank - 1) % world, (rank + 1) % world
    top, bottom = u[1].clone(), u[-2].clone()
    from_up, from_down = torch.empty_like(top), torch.empty_like(top)
    ops = [
        dist.P2POp(dist.isend, top, up, tag=1),
        dist.P2POp(dist.irecv, from_down, down, tag=1),
        dist.P2POp(dist.isend, bottom, down, tag=2),
        dist.P2POp(dist.irecv, from_up, up, tag=2),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    u[0], u[-1] = from_up, from_down
