"""Groups recreated under the same name get the same distinct names on all ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import commtrace
from commtrace.event import CommEvent, GroupRow
from commtrace.tracefile import Trace, join, read_trace
from commtrace.tracefile.joining.generations import base_of
from dtensor_core.testing import run_processes
from tests.commtrace.tracefile.joining.test_clocks import MS, START, spool

WORLDS = ({0, 1}, {0, 1, 2}, {1, 2})
"""The ranks that make calls in each of three worlds."""


def calls_in(rank: int) -> tuple[list[Any], list[Any]]:
    """The calls of a rank, and the groups with the rank's own numbering."""
    comm: list[Any] = []
    names = []
    for world, callers in enumerate(WORLDS):
        if rank in callers:
            names.append(f"0#{len(names) + 1}" if names else "0")
            for seq in (0, 1):
                at = START + 100 * MS * world + 10 * MS * seq + rank
                comm.append(
                    CommEvent(
                        rank=rank, id=len(comm), kind="send", group=names[-1], seq=seq,
                        issue_ns=at, complete_ns=at + MS,
                    )
                )  # fmt: skip
    return comm, [GroupRow(name, "default_pg", "0,1,2", 3, "", "gloo") for name in names]


def joined() -> Trace:
    spools = []
    for rank in range(3):
        comm, groups = calls_in(rank)
        made = spool(rank, "host", comm)
        own = spool(rank, "host", comm)
        rows = list(zip(*groups, strict=True))
        made.tables["groups"] = {
            name: list(values) for name, values in zip(own.tables["groups"], rows, strict=True)
        }
        spools.append(made)
    return join(spools)


def test_a_rank_that_called_in_some_worlds_only_has_their_names() -> None:
    comm = joined().tables["comm"]
    found: dict[int, list[str]] = {}
    for rank, group in zip(comm["rank"], comm["group"], strict=True):
        if group not in found.setdefault(rank, []):
            found[rank].append(group)
    assert found == {0: ["0", "0#2"], 1: ["0", "0#2", "0#3"], 2: ["0#2", "0#3"]}


def test_a_number_within_a_group_is_there_once_on_a_rank() -> None:
    comm = joined().tables["comm"]
    times = Counter(zip(comm["rank"], comm["group"], comm["seq"], strict=True))
    assert set(times.values()) == {1}


def test_a_base_name_lacks_the_number_of_the_generation() -> None:
    assert [base_of(name) for name in ("0", "0#2", "a#b", "tp#2#3")] == ["0", "0", "a#b", "tp#2"]


def make_groups_again(folder: str) -> None:
    rank = dist.get_rank()
    with commtrace.record(Path(folder) / "run.json", detail="collective"):
        for world in range(3):
            if world:
                dist.destroy_process_group()
                store = dist.FileStore(f"{folder}/store{world}", 2)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            pair: Any = dist.new_group([0, 1])
            for group in (None, pair, None):
                dist.all_reduce(torch.ones(2), group=group)


def test_groups_that_are_made_again_are_recorded_with_distinct_numbers(
    tmp_path: Path,
) -> None:
    run_processes(make_groups_again, 2, str(tmp_path), timeout_s=100)
    trace = read_trace(tmp_path / "run.json")
    comm = trace.tables["comm"]
    keys = Counter(zip(comm["rank"], comm["group"], comm["seq"], strict=True))
    assert set(keys.values()) == {1}
    of_rank = [
        [
            key
            for key in zip(comm["group"], comm["seq"], comm["rank"], strict=True)
            if key[2] == rank
        ]
        for rank in (0, 1)
    ]
    assert [key[:2] for key in of_rank[0]] == [key[:2] for key in of_rank[1]]
    assert len(of_rank[0]) == 9
    assert len(set(comm["group"])) == 6
