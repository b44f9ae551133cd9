from __future__ import annotations

import pytest

from commtrace.analyze import load
from commtrace.analyze.traffic.matrix import matrix
from tests.commtrace.analyze.rows import call, random_trace, run_of
from tests.commtrace.analyze.training import training_trace


def pairs(calls: list, num_ranks: int = 3) -> dict[tuple[int, int], float]:
    table = matrix(run_of(calls, num_ranks=num_ranks))
    return {(s, t): b for s, t, b, _ in table.itertuples(index=False)}


def test_a_ring_sends_to_the_next_member() -> None:
    calls = [call(rank=rank, wire_bytes=10 + rank) for rank in range(3)]
    assert pairs(calls) == {(0, 1): 10, (1, 2): 11, (2, 0): 12}


def test_a_transfer_goes_to_its_peer_and_counts_once() -> None:
    calls = [
        call(kind="send", peer=2, wire_bytes=7),
        call(rank=2, kind="recv", peer=0, wire_bytes=0),
    ]
    assert pairs(calls) == {(0, 2): 7}


def test_an_all_to_all_sends_every_other_member_as_much() -> None:
    assert pairs([call(rank=1, kind="all_to_all", wire_bytes=8)]) == {(1, 0): 4, (1, 2): 4}


def test_an_all_to_all_with_splits_sends_each_member_its_own() -> None:
    calls = [
        call(id=0, kind="all_to_all", wire_bytes=8, input_splits="4,0,8"),
        call(id=1, kind="all_to_all", wire_bytes=8, input_splits="4,0,8"),
        call(id=2, kind="all_to_all", wire_bytes=3, input_splits="0,2,1"),
        call(rank=2, kind="all_to_all", wire_bytes=6),
    ]
    assert pairs(calls) == {(0, 1): 2, (0, 2): 17, (2, 0): 3, (2, 1): 3}


def test_a_gather_goes_to_the_root_and_a_scatter_from_it() -> None:
    gather = [
        call(rank=rank, kind="gather", root=0, wire_bytes=5 * (rank > 0)) for rank in range(3)
    ]
    assert pairs(gather) == {(1, 0): 5, (2, 0): 5}
    assert pairs([call(kind="scatter", root=0, wire_bytes=6)]) == {(0, 1): 3, (0, 2): 3}


@pytest.mark.parametrize("trace", [training_trace(), random_trace(1)])
def test_all_wire_bytes_of_known_groups_are_somewhere(trace) -> None:
    frames = load(trace)
    comm = frames.comm
    has_target = comm["kind"].isin(["send", "gather"])  # a peer or a root, in any group
    known = comm["group"].isin(set(frames.groups["name"])) | has_target
    known &= comm["kind"] != "recv"
    expected = comm.loc[known, "wire_bytes"].clip(lower=0).sum()
    assert matrix(frames)["wire_bytes"].sum() == pytest.approx(expected)
