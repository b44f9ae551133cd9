"""Totals of the derivation compared with the papers."""

from __future__ import annotations

from tests.demo.theory import PER_STEP, Call, N, T, wire_bytes


def num_calls(mode: str, **wanted: str) -> int:
    return sum(
        count
        for call, count in PER_STEP[mode].items()
        if all(getattr(call, name) == value for name, value in wanted.items())
    )


def in_block(mode: str, phase: str) -> list[str]:
    calls = [call for call in PER_STEP[mode].elements() if call.module.startswith("layers.0.")]
    return sorted(c.kind for c in calls if c.phase == phase and not c.module.endswith("norm"))


def test_a_block_has_two_all_reduces_forward_and_two_backward() -> None:
    assert in_block("tensor parallel", "forward") == ["all_reduce"] * 2
    assert in_block("tensor parallel", "backward") == ["all_reduce"] * 2


def test_splitting_the_sequence_swaps_each_for_a_gather_and_a_scatter() -> None:
    pairs = ["all_gather"] * 2 + ["reduce_scatter"] * 2
    assert in_block("sequence parallel", "forward") == pairs
    assert in_block("sequence parallel", "backward") == pairs


def test_a_pair_sends_as_many_bytes_as_the_all_reduce_that_it_replaces() -> None:
    assert wire_bytes("all_gather", 4096) + wire_bytes("reduce_scatter", 4096) == wire_bytes(
        "all_reduce", 4096
    )


def test_totals_by_kind() -> None:
    assert num_calls("tensor parallel", kind="all_reduce") == (2 + 2 * N) + (2 * N + 1)
    assert num_calls("tensor parallel", kind="all_gather") == 1
    assert num_calls("sequence parallel", kind="reduce_scatter") == (2 + 2 * N) + (2 * N + 1)
    assert num_calls("sequence parallel", kind="all_gather") == (2 * N + 2) + (2 * N + 2)
    assert num_calls("sequence parallel", kind="all_reduce") == 2 * (2 * N + 1)


def test_a_payload_is_counted_in_bytes() -> None:
    assert Call("forward", "norm", "all_reduce", (2, T)).payload_bytes == 32
