"""The tensor-parallel Transformer of the benchmarks: one model and one plan for both DTensors.

Attention is written as matrix products and a softmax, without a mask, because torch's DTensor
runs no fused attention on CPU. Activations between the pairs of matrices are replicated, or
sharded along the sequence with sequence parallelism.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.kit import RANKS, Kit
from benchmarks.measure import Contender
from tests.dtensor_core.models.small_models import ModelArgs, Transformer

BATCH, SEQUENCE = 4, 32


def transformer_args(dim: int) -> ModelArgs:
    """Arguments of a model of 4 layers."""
    return ModelArgs(
        n_layers=4,
        vocab_size=64,
        max_seq_len=SEQUENCE,
        dim=dim,
        n_heads=RANKS,
        dropout_p=0.0,
        weight_tying=False,
    )


MODEL = transformer_args(dim=64)
NARROW = transformer_args(dim=16)
"""A model whose operators do so little that what goes around them dominates."""


class _Attention(nn.Module):
    """Equivalent of `F.scaled_dot_product_attention` in operators that both DTensors support."""

    def __init__(self, fused: Any, num_heads: int) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = fused.wq, fused.wk, fused.wv, fused.wo
        self.num_heads = num_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, D] -> [B, L, D]."""
        batch, length, dim = x.shape
        size = dim // self.num_heads
        queries, keys, values = (
            each.view(batch, length, self.num_heads, size).transpose(1, 2)
            for each in (self.wq(x), self.wk(x), self.wv(x))
        )  # [B, H, L, E]
        weights = (queries @ keys.transpose(-2, -1) * size**-0.5).softmax(-1)
        return self.wo((weights @ values).transpose(1, 2).reshape(batch, length, dim))


def parallel_transformer(
    kit: Kit, mesh: DeviceMesh, args: ModelArgs, *, by_sequence: bool
) -> Transformer:
    """Create a model and parallelize it over the mesh."""
    torch.manual_seed(0)
    model = Transformer(args)
    for layer in model.layers:
        layer.attention = _Attention(layer.attention, args.n_heads)  # pyright: ignore
    kit.parallel.parallelize_module(model, mesh, _plan(kit, by_sequence))
    return model


def _plan(kit: Kit, by_sequence: bool) -> dict[str, object]:
    """Parallel styles by module: matrices in pairs, column-wise then row-wise."""
    api, styles = kit.tensor, kit.parallel
    full = api.Replicate()
    between = api.Shard(1) if by_sequence else full
    positions = api.Shard(0) if by_sequence else full
    plan: dict[str, object] = {
        "tok_embeddings": styles.RowwiseParallel(input_layouts=full, output_layouts=between),
        "pos_embeddings": styles.RowwiseParallel(input_layouts=full, output_layouts=positions),
        "layers.*.attention": styles.PrepareModuleInput(
            input_layouts=between, desired_input_layouts=full
        ),
        "layers.*.attention.w[qkv]": styles.ColwiseParallel(use_local_output=False),
        "layers.*.attention.wo": styles.RowwiseParallel(output_layouts=between),
        "layers.*.feed_forward.w1": styles.ColwiseParallel(input_layouts=between),
        "layers.*.feed_forward.w2": styles.RowwiseParallel(output_layouts=between),
        "output": styles.ColwiseParallel(input_layouts=between, output_layouts=full),
    }
    if by_sequence:
        norms = ("norm", "layers.*.attention_norm", "layers.*.ffn_norm")
        plan |= {name: styles.SequenceParallel() for name in norms}
    return plan


def step_of(model: Transformer) -> Contender:
    """Create a function that runs forward and backward, with new gradients each time."""
    tokens = torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE) % model.model_args.vocab_size

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    return step
