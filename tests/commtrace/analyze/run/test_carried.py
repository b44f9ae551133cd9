"""A call carries no more bytes of gradients than it sends."""

from __future__ import annotations

from typing import Any

from commtrace.analyze.run.carried import parameters_of
from tests.commtrace.analyze.rows import call, run_of

NORM, UNIT = "norm.weight", "norm.weight,up.weight,down.weight"


def gradients(*calls: tuple[str, str, int]) -> Any:
    """Calls of a rank in a group of two, by kind, names and payload."""
    return run_of(
        [
            call(id=n, seq=n, kind=kind, carries="gradients", parameters=names, payload_bytes=size)
            for n, (kind, names, size) in enumerate(calls)
        ],
        num_ranks=2,
    )


def test_a_call_that_is_smaller_than_a_share_of_the_gradients_does_not_carry_them() -> None:
    frames = gradients(
        ("all_reduce", UNIT, 16),  # as recorded before, of a norm
        ("all_reduce", NORM, 16),
        ("reduce_scatter", UNIT, 4096),
        ("all_reduce", UNIT, 2048),  # of the shares, between replicas
    )
    assert parameters_of(frames, frames.comm).tolist() == ["", NORM, UNIT, UNIT]


def test_compressed_gradients_and_those_of_unknown_size_keep_their_names() -> None:
    frames = gradients(("all_reduce", UNIT, 4096), ("all_reduce", UNIT, 16))
    assert parameters_of(frames, frames.comm).tolist() == [UNIT, UNIT]
    frames = gradients(("all_reduce", UNIT, -1), ("reduce_scatter", UNIT, 4096))
    assert parameters_of(frames, frames.comm).tolist() == [UNIT, UNIT]
