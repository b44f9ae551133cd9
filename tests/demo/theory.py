"""Communication of a step of examples/train_tp.py, derived by hand.

Notation: T ranks, B sequences of L tokens, D features, V bytes, N blocks. A call's shape is the
shape of its payload: the tensor that all_reduce reduces, that all_gather gathers, that
reduce_scatter scatters. A column-wise matrix takes the replicated activation and computes its shard
of the features; a row-wise matrix takes its shard of the features and computes a partial sum. So a
pair of both communicates twice: forward it reduces the partial sums, backward the partial gradients
of the replicated activation that each rank's columns give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

T, B, L, D, V, N = 4, 8, 64, 64, 256, 4
FLOAT32_BYTES = 4

ACTIVATION = (B, L, D)
POSITIONS = (L, D)
LOGITS = (B, L, V)
FEATURES = (D,)

WIRE_SHARES = {  # bytes that a rank sends in a ring, as a share of the payload: (times, over)
    "all_reduce": (2 * (T - 1), T),
    "all_gather": (T - 1, T),
    "reduce_scatter": (T - 1, T),
    "broadcast": (1, 1),
    "scatter": (T - 1, T),
}


class Call(NamedTuple):
    """A collective of a step."""

    phase: str
    module: str
    kind: str
    shape: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        return prod(self.shape) * FLOAT32_BYTES


def tensor_parallel() -> Iterator[Call]:
    """Calls with replicated activations between pairs of matrices."""
    # Each rank holds some rows of the tables and looks up zero for a token in another's rows. So
    # the results are partial sums. Their gradient is replicated: nothing backward.
    yield Call("forward", "tok_embeddings", "all_reduce", ACTIVATION)
    yield Call("forward", "pos_embeddings", "all_reduce", POSITIONS)
    for block in blocks():
        # wq, wk, wv column-wise (heads), wo row-wise; w1 column-wise, w2 row-wise.
        yield Call("forward", f"{block}.attention.wo", "all_reduce", ACTIVATION)
        yield Call("forward", f"{block}.feed_forward.w2", "all_reduce", ACTIVATION)
        yield Call("backward", f"{block}.feed_forward.w1", "all_reduce", ACTIVATION)
        # The gradients through wq, wk and wv are added before the reduction over ranks: one, not 3.
        yield Call("backward", f"{block}.attention", "all_reduce", ACTIVATION)
    # Column-wise without a partner: the loss needs all logits, and their gradient is replicated.
    yield Call("forward", "output", "all_gather", LOGITS)
    yield Call("backward", "output", "all_reduce", ACTIVATION)
    # Norms, residuals and the loss see replicated tensors: nothing.


def sequence_parallel() -> Iterator[Call]:
    """Calls with activations sharded along the sequence between pairs of matrices.

    Each all-reduce becomes a reduce-scatter at the end of a pair and an all-gather at the
    beginning, forward and backward, because the gradient has the layout of the activation.
    """
    for table, shape in (("tok_embeddings", ACTIVATION), ("pos_embeddings", POSITIONS)):
        yield Call("forward", table, "reduce_scatter", shape)
        yield Call("backward", table, "all_gather", shape)
    for block in blocks():
        for begin, end in (("attention", "attention.wo"), ("feed_forward.w1", "feed_forward.w2")):
            yield Call("forward", f"{block}.{begin}", "all_gather", ACTIVATION)
            yield Call("forward", f"{block}.{end}", "reduce_scatter", ACTIVATION)
            yield Call("backward", f"{block}.{end}", "all_gather", ACTIVATION)
            yield Call("backward", f"{block}.{begin}", "reduce_scatter", ACTIVATION)
    yield Call("forward", "output", "all_gather", ACTIVATION)
    yield Call("forward", "output", "all_gather", LOGITS)
    yield Call("backward", "output", "reduce_scatter", ACTIVATION)
    # Each rank's shard of the sequence gives a partial sum of the gradient of a norm's parameters.
    for norm in norms():
        for _parameter in ("weight", "bias"):
            yield Call("backward", norm, "all_reduce", FEATURES)


def blocks() -> list[str]:
    return [f"layers.{number}" for number in range(N)]


def norms() -> list[str]:
    inner = [f"{block}.{norm}" for block in blocks() for norm in ("attention_norm", "ffn_norm")]
    return [*inner, "norm"]


PER_STEP = {
    "tensor parallel": Counter(tensor_parallel()),
    "sequence parallel": Counter(sequence_parallel()),
}


def wire_bytes(kind: str, payload_bytes: int) -> int:
    """Bytes that each rank of a ring sends; all payloads here divide evenly."""
    times, over = WIRE_SHARES[kind]
    assert payload_bytes * times % over == 0
    return payload_bytes * times // over


def distributed_parameters() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Collectives by which rank 0 distributes the parameters before the first step.

    A sharded parameter is scattered, a replicated parameter broadcast. Those of norms stay as
    created, alike on all ranks, with and without sequence parallelism.
    """
    hidden = 4 * D
    yield "scatter", (V, D)  # tok_embeddings
    yield "scatter", (L, D)  # pos_embeddings
    yield "scatter", (V, D)  # output
    for _block in blocks():
        yield from [("scatter", (D, D))] * 4  # wq, wk, wv, wo
        yield from [("scatter", (hidden, D)), ("scatter", (hidden,))]  # w1 and its bias
        yield from [("scatter", (D, hidden)), ("broadcast", (D,))]  # w2 and its bias
