"""fully_shard: nested layers, accumulation, mixed precision, clipping, a sharded checkpoint."""

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main(shape: tuple[int, ...]) -> None:
    dist.init_process_group("gloo")
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    sharded = fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        sharded.set_requires_gradient_sync(step % 2 == 1)
        model(torch.randn(4, 32)).float().square().mean().backward()
        if step % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, src=0)
    states, _ = get_state_dict(model, optimizer)
    checkpoint.save({"model": states}, checkpoint_id=folder[0])
    checkpoint.load({"model": states}, checkpoint_id=folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(tuple(int(size) for size in sys.argv[1:]))
