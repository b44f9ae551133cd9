"""FullyShardedDataParallel: a policy, mixed precision, clipping, full parameters read."""

import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main(strategy: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer = partial(nn.TransformerEncoderLayer, 32, 4, 64, dropout=0.0, batch_first=True)
    model = FullyShardedDataParallel(
        nn.Sequential(nn.Embedding(50, 32), layer(), layer(), nn.Linear(32, 50)),
        auto_wrap_policy=partial(
            transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
        ),
        sharding_strategy=ShardingStrategy[strategy],
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.device("cpu"),
        device_mesh=init_device_mesh("cpu", (2, 2)) if strategy == "HYBRID_SHARD" else None,
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        tokens = torch.randint(50, (4, 8))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        if step:
            model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        sum(parameter.sum().item() for parameter in model.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
