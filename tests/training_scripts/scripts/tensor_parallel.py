"""torch's own tensor and sequence parallelism on a feed-forward block, with fully_shard across."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Embedding(64, 32), "head": nn.Linear(32, 64)})
    blocks = nn.ModuleList(Block() for _ in range(2))
    parallelize_module(
        model,
        mesh["tp"],
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "head": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    for block in blocks:
        parallelize_module(
            block,
            mesh["tp"],
            {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
        fully_shard(block, mesh=mesh["dp"])
    everything = nn.ModuleDict({"model": model, "blocks": blocks})
    optimizer = torch.optim.AdamW(everything.parameters(), foreach=False)
    for _ in range(2):
        tokens = torch.randint(64, (2, 8))
        x = model["embed"](tokens)
        for block in blocks:
            x = block(x)
        with loss_parallel():
            logits = model["head"](x)
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
