"""What examples/train_tp.py must communicate in one step, derived by hand.

Notation: T ranks, B sequences of L tokens, D features, V bytes, N blocks; a call's shape is that of
its payload: of the tensor that all_reduce sums up, that all_gather puts together, that
reduce_scatter takes apart. A matrix split by columns is fed the whole activation and makes its part
of the features; one split by rows is fed its part of the features and makes a term of a sum. So a
pair of both communicates twice: the sum of the terms forward, and backward the sum of the gradients
that each rank's columns give for the whole activation.
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

WIRE_SHARES = {  # what a rank sends in a ring, as a part of the payload: (times, over)
    "all_reduce": (2 * (T - 1), T),
    "all_gather": (T - 1, T),
    "reduce_scatter": (T - 1, T),
    "broadcast": (1, 1),
    "scatter": (T - 1, T),
}


class Call(NamedTuple):
    """One collective of one step."""

    phase: str
    module: str
    kind: str
    shape: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        return prod(self.shape) * FLOAT32_BYTES


def tensor_parallel() -> Iterator[Call]:
    """Between pairs of matrices, every rank holds all activations."""
    # Each rank has some rows of the tables; a token in another's rows counts as zero here. So the
    # looked-up rows are terms of a sum. Their gradient is whole on every rank: nothing backward.
    yield Call("forward", "tok_embeddings", "all_reduce", ACTIVATION)
    yield Call("forward", "pos_embeddings", "all_reduce", POSITIONS)
    for block in blocks():
        # wq, wk, wv by columns (heads), wo by rows; w1 by columns, w2 by rows.
        yield Call("forward", f"{block}.attention.wo", "all_reduce", ACTIVATION)
        yield Call("forward", f"{block}.feed_forward.w2", "all_reduce", ACTIVATION)
        yield Call("backward", f"{block}.feed_forward.w1", "all_reduce", ACTIVATION)
        # The gradients through wq, wk and wv add up before they are summed over ranks: one, not 3.
        yield Call("backward", f"{block}.attention", "all_reduce", ACTIVATION)
    # By columns with no partner: the loss wants all logits, and their gradient is whole.
    yield Call("forward", "output", "all_gather", LOGITS)
    yield Call("backward", "output", "all_reduce", ACTIVATION)
    # Norms, residuals and the loss see whole tensors on every rank: nothing.


def sequence_parallel() -> Iterator[Call]:
    """Between pairs of matrices, every rank holds its part of the sequence.

    Each all-reduce becomes a reduce-scatter where a pair ends and an all-gather where one begins,
    forward and backward, as the gradient's layout is that of the activation.
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
    # Each rank's part of the sequence gives a term of the gradient of a norm's weight and bias.
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
    """What each rank of a ring sends; all payloads here divide evenly."""
    times, over = WIRE_SHARES[kind]
    assert payload_bytes * times % over == 0
    return payload_bytes * times // over


def distributed_parameters() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Before the first step, rank 0 hands each parameter out: split (scatter) or whole (broadcast).

    Those of norms are as they are made, alike on all ranks, whether the sequence is split or not.
    """
    hidden = 4 * D
    yield "scatter", (V, D)  # tok_embeddings
    yield "scatter", (L, D)  # pos_embeddings
    yield "scatter", (V, D)  # output
    for _block in blocks():
        yield from [("scatter", (D, D))] * 4  # wq, wk, wv, wo
        yield from [("scatter", (hidden, D)), ("scatter", (hidden,))]  # w1 and its bias
        yield from [("scatter", (D, hidden)), ("broadcast", (D,))]  # w2 and its bias
