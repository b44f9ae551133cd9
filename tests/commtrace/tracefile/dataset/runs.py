"""Folders of spools of every kind, for laws that hold for all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from commtrace.event import CommEvent, GroupRow, OpEvent, StepRow
from commtrace.schema import TABLES
from commtrace.tracefile import (
    FOUND_STEPS,
    SegmentedWriter,
    SpoolWriter,
    Trace,
    merge_spools,
    sites_of,
    spool_name,
)
from commtrace.tracefile.spool import NUMBERS, SITES
from tests.commtrace.synthetic import START_NS, synthetic_facts, write_synthetic_spools

MS = 1_000_000


def whole(folder: Path) -> None:
    write_synthetic_spools(folder, world_size=3)


def killed(folder: Path) -> None:
    """Rank 0 is whole, 1 was killed within a batch, 2 before its first, 3 left no file."""
    write_synthetic_spools(folder, world_size=4)
    (folder / spool_name(3)).unlink()
    (folder / spool_name(2)).write_bytes(b"")
    torn = folder / spool_name(1)
    torn.write_bytes(torn.read_bytes()[:-200])


def hosts(folder: Path) -> None:
    """Three systems, whose clocks differ; groups `5` have other ranks on each pair."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(3)
    arrivals = [[chance.randrange(MS) for _ in range(4)] for _ in range(30)]
    for rank in range(4):
        behind = (0, 7 * MS, -3 * MS)[rank % 3]
        comm = []
        for seq, issued in enumerate(arrivals):
            now = START_NS + 5 * MS * seq
            comm.append(
                CommEvent(
                    rank=rank, id=seq, kind="all_reduce", group="0", seq=seq,
                    issue_ns=now + issued[rank] - behind,
                    complete_ns=now + max(issued) + 9_000 - behind,
                )
            )  # fmt: skip
        comm.append(
            CommEvent(rank=rank, id=len(comm), kind="send", group="5", issue_ns=START_NS + MS)
        )
        of_pair = "0,1" if rank < 2 else "2,3"
        groups = [GroupRow("0", "", "0,1,2,3", 4), GroupRow("5", "", of_pair, 2)]
        facts = {"boot": f"boot{rank % 3}", "host": f"host{rank % 3}", "epoch_ns": 0}
        _write(folder, rank, 4, {"comm": comm, "groups": groups}, facts)


def recreated(folder: Path) -> None:
    """Groups created again under the same name; rank 2 has only the second."""
    folder.mkdir(parents=True, exist_ok=True)
    worlds: tuple[set[int], ...] = ({0, 1}, {0, 1, 2}, {1, 2})
    for rank in range(3):
        comm: list[Any] = []
        names: list[str] = []
        for world, callers in enumerate(worlds):
            if rank in callers:
                names.append(f"0#{len(names) + 1}" if names else "0")
                at = START_NS + 100 * MS * world + rank
                comm.append(
                    CommEvent(
                        rank=rank, id=len(comm), kind="send", group=names[-1],
                        issue_ns=at, complete_ns=at + MS,
                    )
                )  # fmt: skip
        groups = [GroupRow(name, "default_pg", "0,1,2", 3, "", "gloo") for name in names]
        _write(folder, rank, 3, {"comm": comm, "groups": groups}, {})


def restarted(folder: Path) -> None:
    """Spools of an earlier attempt beside the latest attempt's."""
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(2):
        for rank in range(2):
            start = START_NS + 1000 * MS * attempt
            facts = {"start_ns": start, "end_ns": start + MS, "pid": 10 * attempt + rank}
            comm = [CommEvent(rank=rank, id=n, issue_ns=start + n) for n in range(3 + attempt)]
            name = f"rank-{rank:05d}.{attempt}.spool"
            _write(folder, rank, 2, {"comm": comm}, facts, name=name)


def found_steps(folder: Path) -> None:
    """Steps that were found, of a run that recorded every other step; rank 1 has marked none."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        facts = synthetic_facts(rank, 2)
        comm = [CommEvent(rank=rank, id=n, step=-1, issue_ns=START_NS + 10 * n) for n in range(8)]
        ops = [OpEvent(rank=rank, id=n, step=-1, start_ns=START_NS + 10 * n) for n in range(8)]
        steps = [
            ("optimizer", -1, n, START_NS + 10 + 40 * n, START_NS + 30 + 40 * n) for n in range(2)
        ]
        tables = {"comm": comm, "ops": ops, FOUND_STEPS: steps}
        _write(folder, rank, 2, tables, {"run": {**facts["run"], "every": 2}})


def partial(folder: Path) -> None:
    """Marked steps, one recorded only in part; ids out of order; a former rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        comm = [
            CommEvent(rank=rank, id=n, step=n // 3, issue_ns=START_NS + n)
            for n in (5, 3, 4, 0, 1, 2)
        ]
        steps = [StepRow(rank, n, START_NS + 9 * n, START_NS + 9 * n + 9) for n in range(2)]
        ops = [OpEvent(rank=7, id=n, start_ns=START_NS + n) for n in range(3)]
        facts = {"partial_steps": [1], "taken_for": [7], "end_ns": 0}
        _write(folder, rank, 2, {"comm": comm, "steps": steps, "ops": ops}, facts)


def segmented(folder: Path) -> None:
    """The last segments of two ranks; one has lost the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        paths: list[Path] = []

        def opened(number: int, rank: int = rank, paths: list[Path] = paths) -> Any:
            suffix = f".s{number}.spool" if number else ".spool"
            paths.append(folder / f"rank-{rank:05d}{suffix}")
            return open(paths[-1], "w+b", buffering=0)

        writer = SegmentedWriter(
            opened(0),
            synthetic_facts(rank, 2),
            segment_bytes=1,
            open_segment=opened,
            clock=count(START_NS).__next__,
        )
        for number in range(6):
            writer.write(*_numbered(rank, number))
        writer.write({}, {"complete": True, "end_ns": START_NS + 9})
        writer.close()
        for path in paths[:2] + paths[3 : 4 + rank]:
            path.unlink()


def _numbered(rank: int, number: int) -> tuple[dict[str, Any], None, dict[str, list[int]]]:
    event = CommEvent(rank=rank, id=number, seq=number, issue_ns=START_NS + number, group="g")
    row = dict(zip([column.name for column in TABLES["comm"]], event, strict=True))
    site = tuple([row[column.name] for column in SITES["comm"]])
    numbers = [*(row[column.name] for column in NUMBERS["comm"][:-1]), 0]
    groups = [GroupRow("g", "", "0,1", 2, "", "gloo")] if not number else []
    return {sites_of("comm"): [] if number else [site], "groups": groups}, None, {"comm": numbers}


def run_files(folder: Path) -> None:
    """A run file of two ranks, and a spool of a third."""
    folder.mkdir(parents=True, exist_ok=True)
    spools = write_synthetic_spools(folder / "spools", world_size=3)
    third = (spools / spool_name(2)).read_bytes()
    (spools / spool_name(2)).unlink()
    merge_spools(spools, folder / "node0.json")
    for path in spools.iterdir():
        path.unlink()
    spools.rmdir()
    (folder / spool_name(2)).write_bytes(third)


def unusual(folder: Path) -> None:
    """Lone surrogates, a rank without calls, and parts in a folder below."""
    folder = folder / "node0"
    folder.mkdir(parents=True)
    comm = [
        CommEvent(rank=0, id=0, module="\udc80x", group="g\udcff", op="aten.mm"),
        CommEvent(rank=0, id=1, module="", group="", step=-1, is_async=True),
    ]
    groups = [GroupRow("g\udcff", "", "0", 1)]
    _write(folder, 0, 3, {"comm": comm, "groups": groups}, {})
    _write(folder, 2, 3, {}, {})


def _write(
    folder: Path, rank: int, world: int, tables: Any, facts: dict[str, Any], name: str = ""
) -> None:
    closing = {"complete": True, "end_ns": START_NS + 5000 * MS}
    with open(folder / (name or spool_name(rank)), "wb") as stream:
        writer = SpoolWriter(stream, synthetic_facts(rank, world) | closing | facts)
        writer.write(tables)


RUNS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        whole, killed, hosts, recreated, restarted, found_steps, partial, segmented, run_files,
        unusual,
    )
}  # fmt: skip
"""Writers of folders, by name."""


def same(one: Trace, other: Trace) -> bool:
    """Return whether two traces have the same facts and the same values."""
    return (dict(one.run), one.tables) == (dict(other.run), other.tables)
