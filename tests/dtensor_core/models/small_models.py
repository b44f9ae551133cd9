"""Small models for tests: two MLPs and a GPT-like Transformer with its tensor-parallel plan.

The Transformer's blocks are pre-norm; attention is plain `F.scaled_dot_product_attention`. Shapes:
B batch, L sequence, D `dim`, H heads, E head size, V vocabulary. After `parallelize` the
activations between blocks are replicated, or with sequence parallelism sharded along L.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dtensor_core.mesh import DeviceMesh
from dtensor_core.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from dtensor_core.placement import Replicate, Shard


class RMSNormPython(nn.Module):
    """Root-mean-square norm over the last dim, in plain operators."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise and scale `x`."""
        norm = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * norm * self.weight


class MLPModule(nn.Module):
    """Linear 10 -> 16, ReLU, linear 16 -> 10; every instance has the same initial weights."""

    def __init__(self, device: str | torch.device | None, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net1 = nn.Linear(10, 16, bias=bias, device=device)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(16, 10, bias=bias, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., 10] to [..., 10]."""
        return self.net2(self.relu(self.net1(x)))

    def reset_parameters(self) -> None:
        """Draw new random weights."""
        self.net1.reset_parameters()
        self.net2.reset_parameters()


class MLPStacked(nn.Module):
    """A stack of `n_layers` MLPModules."""

    def __init__(self, device: str | torch.device | None, n_layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MLPModule(device) for _ in range(n_layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., 10] to [..., 10]."""
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass
class ModelArgs:
    """Sizes and options of a Transformer."""

    n_layers: int = 2
    vocab_size: int = 8
    max_seq_len: int = 16
    dim: int = 16
    n_heads: int = 4
    dropout_p: float = 0.1
    use_attn_mask: bool = True
    weight_tying: bool = True
    checkpoint_activations: bool = False


class Attention(nn.Module):
    """Self-attention, causal if `use_attn_mask`.

    `n_heads` is the number of heads in the forward: this rank's share if q, k and v are local
    tensors.
    """

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        if args.dim % args.n_heads:
            raise ValueError(f"dim {args.dim} can't be divided among {args.n_heads} heads")
        self.head_dim = args.dim // args.n_heads
        self.n_heads = args.n_heads
        self.dropout_p = args.dropout_p
        self.resid_dropout = nn.Dropout(args.dropout_p)
        self.use_attn_mask = args.use_attn_mask
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, args.dim, bias=False)
        self.wv = nn.Linear(args.dim, args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, L, D] to [B, L, D]."""
        bsz, seq_len, _ = x.size()
        queries, keys, values = (
            each.view(bsz, seq_len, self.n_heads, self.head_dim).transpose(1, 2)
            for each in (self.wq(x), self.wk(x), self.wv(x))
        )  # [B, H, L, E]
        output = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            None,
            self.dropout_p if self.training else 0.0,
            self.use_attn_mask,
        )
        output = output.transpose(1, 2).contiguous().view(bsz, seq_len, -1)
        return self.resid_dropout(self.wo(output))


class FeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, dim: int, hidden_dim: int, dropout_p: float) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim)
        self.gelu = nn.GELU()
        self.w2 = nn.Linear(hidden_dim, dim)
        self.resid_dropout = nn.Dropout(dropout_p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, L, D] to [B, L, D]."""
        return self.resid_dropout(self.w2(self.gelu(self.w1(x))))


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each with a norm before it and a residual connection."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(args.dim)
        self.attention = Attention(args)
        self.ffn_norm = nn.LayerNorm(args.dim)
        self.feed_forward = FeedForward(args.dim, hidden_dim=4 * args.dim, dropout_p=args.dropout_p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, L, D] to [B, L, D]."""
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    """A decoder-only language model with learned positions."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.model_args = args
        self.max_seq_len = args.max_seq_len
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.pos_embeddings = nn.Embedding(args.max_seq_len, args.dim)
        self.dropout = nn.Dropout(args.dropout_p)
        self.layers = nn.ModuleList([TransformerBlock(args) for _ in range(args.n_layers)])
        self.norm = nn.LayerNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        if args.weight_tying:
            self.output.weight = self.tok_embeddings.weight
        self.checkpoint_activations = args.checkpoint_activations

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids [B, L] to logits [B, L, V].

        Raises:
            ValueError: L exceeds `max_seq_len`.
        """
        _, seq_len = tokens.size()
        if seq_len > self.max_seq_len:
            raise ValueError(f"a sequence of {seq_len} tokens; the model takes {self.max_seq_len}")
        positions = torch.arange(0, seq_len, device=tokens.device)
        h = self.tok_embeddings(tokens) + self.pos_embeddings(positions)
        h = self.dropout(h)
        for layer in self.layers:
            if self.checkpoint_activations:
                h = checkpoint(layer, h, use_reentrant=False)
            else:
                h = layer(h)
        return self.output(self.norm(h)).float()

    @staticmethod
    def parallelize(
        module: Transformer,
        device_mesh: DeviceMesh,
        use_seq_parallel: bool,
        local_output_for_attn: bool = False,
    ) -> nn.Module:
        """Make the module tensor-parallel over a mesh of a single axis, in place.

        With `use_seq_parallel`, norms, dropouts and residuals work on shards of the sequence. With
        `local_output_for_attn`, attention works on local tensors, each rank on its own heads.
        """
        plan = _ends(use_seq_parallel)
        for index in range(len(module.layers)):
            for name, style in _block(use_seq_parallel, local_output_for_attn).items():
                plan[f"layers.{index}.{name}"] = style
        parallelize_module(module, device_mesh, plan)
        if local_output_for_attn:
            for layer in module.layers:
                layer.attention.n_heads //= device_mesh.size()  # pyright: ignore
        if module.model_args.weight_tying:
            module.output.weight = module.tok_embeddings.weight
        return module


def _ends(use_seq_parallel: bool) -> dict[str, ParallelStyle]:
    """Return the plan for the modules before and after the blocks."""
    between = Shard(1) if use_seq_parallel else Replicate()
    positions = Shard(0) if use_seq_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "pos_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=positions),
        "output": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if use_seq_parallel:
        plan["norm"] = SequenceParallel()
    return plan


def _block(use_seq_parallel: bool, local_output_for_attn: bool) -> dict[str, ParallelStyle]:
    """Return the plan for a block.

    Attention's input is redistributed once for q, k and v together, so that their gradients are
    summed before they are communicated.
    """
    between = Shard(1) if use_seq_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate()),
        "attention.wq": ColwiseParallel(use_local_output=local_output_for_attn),
        "attention.wk": ColwiseParallel(use_local_output=local_output_for_attn),
        "attention.wv": ColwiseParallel(use_local_output=local_output_for_attn),
        "attention.wo": RowwiseParallel(output_layouts=between),
        "feed_forward.w1": ColwiseParallel(input_layouts=between),
        "feed_forward.w2": RowwiseParallel(output_layouts=between),
    }
    if use_seq_parallel:
        plan["attention_norm"] = SequenceParallel()
        plan["ffn_norm"] = SequenceParallel()
    return plan
