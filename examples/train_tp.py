"""Train a byte-level language model whose weights are split over the ranks, and watch it talk.

    commtrace run --nproc 4 -o run.json examples/train_tp.py
    commtrace run --nproc 4 -o sp.json examples/train_tp.py --sequence-parallel
    commtrace summary run.json

The text is the manual included in every Python. The model is a small Transformer without any code
for ranks; `plan` below defines its sharding. The same file runs under torchrun, and
`python examples/train_tp.py --single-process` prints the same losses without ranks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import commtrace
from dtensor_core import DeviceMesh, DTensor, Replicate, Shard, init_device_mesh
from dtensor_core.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY = 256  # a token is a byte
BATCH, SEQUENCE = 8, 64
DIM, HEADS, BLOCKS = 64, 4, 4


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(DIM, DIM, bias=False)
        self.wk = nn.Linear(DIM, DIM, bias=False)
        self.wv = nn.Linear(DIM, DIM, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[B, L, D]` to `[B, L, D]`."""
        q, k, v = (
            matrix(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # [B, H, L, D / H]
            for matrix in (self.wq, self.wk, self.wv)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(DIM, 4 * DIM)
        self.w2 = nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[B, L, D]` to `[B, L, D]`."""
        return self.w2(F.gelu(self.w1(x)))


class Block(nn.Module):
    """Attention and feed-forward, each with a norm before it and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(DIM)
        self.attention = Attention()
        self.ffn_norm = nn.LayerNorm(DIM)
        self.feed_forward = FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[B, L, D]` to `[B, L, D]`."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """A decoder-only language model with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, DIM)
        self.pos_embeddings = nn.Embedding(SEQUENCE, DIM)
        self.layers = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm(DIM)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens `[B, L]` to logits `[B, L, V]`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tok_embeddings(tokens) + self.pos_embeddings(positions)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def plan(sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """Return the parallel style of each module: matrices in pairs, column-wise then row-wise.

    Between such pairs every rank holds the full activations `[B, L, D]`. With `sequence_parallel`
    it holds its shard of the sequence, so that norms and residuals are computed once instead of on
    every rank.
    """
    between = Shard(1) if sequence_parallel else Replicate()
    positions = Shard(0) if sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "pos_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=positions),
        "layers.*.attention": PrepareModuleInput(
            input_layouts=between, desired_input_layouts=Replicate()
        ),
        "layers.*.attention.wq": ColwiseParallel(use_local_output=False),
        "layers.*.attention.wk": ColwiseParallel(use_local_output=False),
        "layers.*.attention.wv": ColwiseParallel(use_local_output=False),
        "layers.*.attention.wo": RowwiseParallel(output_layouts=between),
        "layers.*.feed_forward.w1": ColwiseParallel(input_layouts=between),
        "layers.*.feed_forward.w2": RowwiseParallel(output_layouts=between),
        "output": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if sequence_parallel:
        norms = ("layers.*.attention_norm", "layers.*.ffn_norm", "norm")
        styles |= {norm: SequenceParallel() for norm in norms}
    return styles


def parallelize(model: torch.nn.Module, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Shard the model as planned, and redistribute each gradient to its parameter's placements.

    A norm on a shard of the sequence produces a partial sum as its gradient. Without the hook it
    would be reduced over the ranks each time it is read, and AdamW reads it twice.
    """
    if HEADS % mesh.size():
        raise ValueError(f"{mesh.size()} ranks cannot share {HEADS} heads evenly")
    parallelize_module(model, mesh, plan(sequence_parallel))
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            placements = parameter.placements
            parameter.register_hook(lambda grad, to=placements: grad.redistribute(placements=to))


def build(seed: int) -> Transformer:
    """Build the model on one process; the same seed gives the same model on every rank."""
    torch.manual_seed(seed)
    return Transformer()


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and next-byte targets, `[B, L]` each, indefinitely."""
    text = torch.tensor(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    dice = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - SEQUENCE, (BATCH, 1), generator=dice)
        windows = text[starts + torch.arange(SEQUENCE + 1)].long()
        yield windows[:, :-1], windows[:, 1:]


def train(model: torch.nn.Module, *, steps: int, lr: float, seed: int) -> Iterator[float]:
    """Train, and yield the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _, (tokens, targets) in zip(range(steps), batches(seed), strict=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        yield loss.item()


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        epilog="example: commtrace run --nproc 4 -o run.json examples/train_tp.py --steps 10",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--sequence-parallel", action="store_true", help="split the sequence between matrices too"
    )
    mode.add_argument(
        "--single-process", action="store_true", help="the same training without any ranks"
    )
    parser.add_argument("--steps", type=int, default=30, help="how many (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    given = parser.parse_args()
    if not given.single_process and "RANK" not in os.environ:
        parser.error("no ranks: start this with `commtrace run --nproc 4`, or add --single-process")
    return given


def main() -> None:
    """Train with the options of the command line; rank 0 prints."""
    options = arguments()
    model = build(options.seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rank, how = 0, "one process"
    if not options.single_process:
        dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        how = f"world size {ranks}, tensor parallel"
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        parallelize(model, mesh, sequence_parallel=options.sequence_parallel)
    if options.sequence_parallel:
        how += ", sequence parallel"
    if rank == 0:
        print(f"{parameters:,} parameters, {how}", flush=True)
    with commtrace.record(detail="collective") as recording:  # joins `commtrace run`'s
        losses = train(model, steps=options.steps, lr=options.lr, seed=options.seed)
        for step, loss in enumerate(losses):
            recording.step()
            if rank == 0:
                print(f"step {step:3}  loss {loss:.6f}", flush=True)
    if not options.single_process:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
