"""A Llama-like model for tests, and two ways of sharding it over a mesh.

The model has RMS norms, rotary positions, attention with fewer key-value heads than query heads,
and SwiGLU, written as for a single device. Shapes: B batch, L sequence, D `dim`, H query heads, K
key-value heads, E head size, V vocabulary.

`parallelize` applies a plan of styles as programs do: tensor and sequence parallelism on a single
axis. `distribute` makes every parameter a DTensor on a mesh of any number of axes and leaves the
rest to the operators; the model is then called with DTensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dtensor_core.api import distribute_tensor
from dtensor_core.mesh import DeviceMesh
from dtensor_core.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from dtensor_core.placement import Placement, Replicate, Shard


@dataclass(frozen=True, slots=True)
class LlamaArgs:
    """Sizes and options of a Llama; `complex_rotary` rotates complex pairs, otherwise halves."""

    n_layers: int = 2
    dim: int = 16
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 4
    hidden_dim: int = 24
    vocab_size: int = 32
    max_seq_len: int = 16
    complex_rotary: bool = True
    tied: bool = False
    checkpoint_activations: bool = False


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dim."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise and scale `x`."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def angles(args: LlamaArgs) -> torch.Tensor:
    """Return the angle of each position and pair of features, [max_seq_len, E/2]."""
    pairs = torch.arange(0, args.head_dim, 2, dtype=torch.float64) / args.head_dim
    return torch.outer(torch.arange(args.max_seq_len), 1.0 / 100.0**pairs)


def rotary_table(args: LlamaArgs) -> torch.Tensor:
    """Return the rotations as complex numbers [L, E/2], or as cosines and sines [2, L, E]."""
    turned = angles(args)
    if args.complex_rotary:
        return torch.polar(torch.ones_like(turned), turned)
    both = torch.cat([turned, turned], dim=-1)
    return torch.stack([both.cos(), both.sin()])


def rotate_pairs(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate neighbouring features of x [B, L, H, E] as complex numbers."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * table.view(1, x.shape[1], 1, -1))
    return turned.flatten(3).type_as(x)


def rotate_halves(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate each feature of the first half of x [B, L, H, E] with a feature of the second half."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = table[0].unsqueeze(1), table[1].unsqueeze(1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).type_as(x)


def repeat_heads(x: torch.Tensor, times: int) -> torch.Tensor:
    """Repeat each head: [B, L, K, E] -> [B, L, K * times, E]."""
    if times == 1:
        return x
    batch, length, heads, size = x.shape
    wide = x[:, :, :, None, :].expand(batch, length, heads, times, size)
    return wide.reshape(batch, length, heads * times, size)


class Attention(nn.Module):
    """Causal self-attention; each key-value head serves H / K query heads."""

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__()
        self.head_dim = args.head_dim
        self.repeats = args.n_heads // args.n_kv_heads
        self.rotate = rotate_pairs if args.complex_rotary else rotate_halves
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Map [B, L, D] to [B, L, D]; `table` is the result of `rotary_table` for L positions."""
        batch, length, _ = x.shape
        q, k, v = (
            each.view(batch, length, -1, self.head_dim)
            for each in (self.wq(x), self.wk(x), self.wv(x))
        )
        q, k = self.rotate(q, table), self.rotate(k, table)
        k, v = repeat_heads(k, self.repeats), repeat_heads(v, self.repeats)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))


class FeedForward(nn.Module):
    """SwiGLU feed-forward network."""

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.hidden_dim, bias=False)
        self.w2 = nn.Linear(args.hidden_dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.hidden_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, L, D] to [B, L, D]."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    """Attention and feed-forward, each with a norm before it and a residual connection."""

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(args.dim)
        self.attention = Attention(args)
        self.ffn_norm = RMSNorm(args.dim)
        self.feed_forward = FeedForward(args)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Map [B, L, D] to [B, L, D]."""
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """A decoder-only language model."""

    def __init__(self, args: LlamaArgs) -> None:
        super().__init__()
        self.args = args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList([LlamaBlock(args) for _ in range(args.n_layers)])
        self.norm = RMSNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        if args.tied:
            self.output.weight = self.tok_embeddings.weight
        self.register_buffer("rotary", rotary_table(args), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids [B, L] to logits [B, L, V]."""
        length = tokens.shape[1]
        table = self.rotary[..., :length, :]  # pyright: ignore[reportIndexIssue]
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            if self.args.checkpoint_activations:
                h = checkpoint(layer, h, table, use_reentrant=False)
            else:
                h = layer(h, table)
        return self.output(self.norm(h))


def parallelize(
    model: Llama, mesh: DeviceMesh, *, loss_parallel: bool = False, use_local_output: bool = True
) -> Llama:
    """Make the model tensor- and sequence-parallel on a mesh of a single axis, in place.

    Args:
        model: The model.
        mesh: A mesh of a single axis.
        loss_parallel: Keep the logits sharded by vocabulary, for `loss_parallel()`.
        use_local_output: Pass local tensors between the modules. Otherwise they pass DTensors, so
            that a sequence may be sharded unevenly.
    """
    colwise = ColwiseParallel(use_local_output=use_local_output)
    rowwise = RowwiseParallel(output_layouts=Shard(1), use_local_output=use_local_output)
    block: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None if use_local_output else Replicate()),
            desired_input_layouts=(Replicate(), None if use_local_output else Replicate()),
        ),
        "attention.w[qkv]": colwise,
        "attention.wo": rowwise,
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate()
        ),
        "feed_forward.w[13]": colwise,
        "feed_forward.w2": rowwise,
    }
    plan: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=use_local_output
        ),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1),
            output_layouts=Shard(-1) if loss_parallel else Replicate(),
            use_local_output=not loss_parallel and use_local_output,
        ),
    }
    plan |= {f"layers.*.{name}": style for name, style in block.items()}
    parallelize_module(model, mesh, plan)
    if model.args.tied:
        model.output.weight = model.tok_embeddings.weight
    return model


# Placement of each parameter on an axis of tensor parallelism.
TENSOR_PARALLEL: Mapping[str, Placement] = {
    "tok_embeddings.weight": Shard(0),
    "output.weight": Shard(0),
    "layers.*.w[qkv13].weight": Shard(0),
    "layers.*.w[o2].weight": Shard(1),
    "*": Replicate(),
}


def distribute(model: Llama, mesh: DeviceMesh, axes: Sequence[Mapping[str, Placement]]) -> Llama:
    """Make every parameter and buffer of the model a DTensor, in place.

    `axes` holds for each mesh axis patterns of parameter names; the first match counts. Parameters
    without a match are replicated.
    """

    def layout(name: str) -> list[Placement]:
        return [
            next((p for pattern, p in axis.items() if fnmatch(name, pattern)), Replicate())
            for axis in axes
        ]

    placed: dict[nn.Parameter, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, parameter in list(module.named_parameters(path, recurse=False)):
            if parameter not in placed:
                placed[parameter] = nn.Parameter(distribute_tensor(parameter, mesh, layout(name)))
            setattr(module, name.rpartition(".")[2], placed[parameter])
        for name, buffer in list(module.named_buffers(path, recurse=False)):
            setattr(module, name.rpartition(".")[2], distribute_tensor(buffer, mesh, layout(name)))
    return model
