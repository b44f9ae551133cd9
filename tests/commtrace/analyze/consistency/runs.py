"""Runs on a mesh of rows (`tp`) and columns (`dp`), as rows of table `comm`, to add faults to."""

from __future__ import annotations

import random
from typing import Any

from commtrace.analyze.consistency import consistency
from tests.commtrace.analyze.rows import call, group, rank_row, run_of


class Program:
    """Sequence of the calls of all ranks; `rows` are these calls."""

    def __init__(self, num_ranks: int, tp: int) -> None:
        self.ranks = range(num_ranks)
        self.tp = tp
        self.rows: list[Any] = []
        self.groups = [
            group("world", list(self.ranks), mesh_axis=""),
            *(group(f"tp{n}", [n * tp + i for i in range(tp)]) for n in range(num_ranks // tp)),
            *(group(f"dp{n}", list(range(n, num_ranks, tp)), mesh_axis="dp") for n in range(tp)),
        ]
        self._ids = dict.fromkeys(self.ranks, 0)
        self._seqs: dict[tuple[int, str], int] = {}

    def group_of(self, rank: int, axis: str) -> str:
        names = {"tp": f"tp{rank // self.tp}", "dp": f"dp{rank % self.tp}"}
        return names.get(axis, "world")

    def one(self, rank: int, kind: str, axis: str, **columns: Any) -> None:
        """Add a call of a rank."""
        name = self.group_of(rank, axis)
        number, seq = self._ids[rank], self._seqs.get((rank, name), 0)
        known = {"dtype": "float32", "payload_bytes": 64, "thread": 1, "source_file": "train.py"}
        known |= {"reduce_op": "sum"} if "reduce" in kind else {}
        at = 100 * number + rank
        known |= {"at": at, "until": at + 50, "call_ns": 50, "blocked_ns": 50, "source_line": 7}
        known |= {"rank": rank, "id": number, "kind": kind, "group": name, "seq": seq}
        made = call(**(known | columns))
        self.rows.append(made._replace(complete_ns=columns.get("complete_ns", made.complete_ns)))
        self._ids[rank] += 1
        self._seqs[rank, name] = seq + 1

    def all(self, kind: str, axis: str, **columns: Any) -> None:
        """Add the same call on every rank."""
        for rank in self.ranks:
            self.one(rank, kind, axis, **columns)


def training(num_ranks: int = 4, tp: int = 2, num_steps: int = 2) -> Program:
    """A correct program that uses every legitimate difference between ranks."""
    program = Program(num_ranks, tp)
    sizes = [8 * (rank + 1) for rank in range(num_ranks)]
    for _ in range(num_steps):
        program.all("broadcast", "world", root=0)
        program.all("all_reduce", "tp")
        for rank in range(num_ranks):  # a pipeline: each rank sends to the next one
            if rank:
                program.one(rank, "recv", "world", peer=rank - 1, payload_bytes=rank)
            if rank < num_ranks - 1:
                program.one(rank, "send", "world", peer=rank + 1, payload_bytes=rank + 1)
        program.all("all_gather", "dp")
        for rank in range(num_ranks):  # all-to-all with uneven sizes
            program.one(
                rank,
                "all_to_all",
                "world",
                payload_bytes=4 * sizes[rank],
                input_shapes=f"[{sizes[rank]}]",
                output_shapes=f"[{sizes[num_ranks - 1 - rank]}]",
            )
        for rank in range(num_ranks):  # gather with uneven sizes
            all_shapes = ";".join(f"[{size},2]" for size in sizes)
            program.one(
                rank,
                "gather",
                "world",
                root=1,
                payload_bytes=8 * sizes[rank] * num_ranks,
                input_shapes=f"[{sizes[rank]},2]",
                output_shapes=all_shapes if rank == 1 else "",
            )
        program.all("all_gather", "world", dtype="int64", payload_bytes=8, carries="objects")
        program.all("reduce_scatter", "dp", is_async=True)
        program.all("barrier", "world", dtype="", payload_bytes=0)
    return program


def crossed(num_ranks: int, swapped: list[int]) -> Program:
    program = Program(num_ranks, num_ranks)
    program.all("barrier", "world")
    for rank in program.ranks:
        axes = ("world", "tp") if rank in swapped else ("tp", "world")
        for axis in axes:
            program.one(rank, "all_reduce", axis, is_async=True, source_line=7 + (axis == "world"))
    return program


def checked(
    rows: list[Any],
    groups: list[Any],
    *,
    seed: int = 0,
    run: dict[str, Any] | None = None,
    **of_rank: dict[int, Any],
) -> list[dict[str, Any]]:
    """Check a run whose ranks and rows are shuffled; `of_rank`: column -> rank -> value."""
    chance = random.Random(seed)
    ranks = sorted({row.rank for row in rows})
    chance.shuffle(ranks)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    about = [
        rank_row(rank, **{name: by[rank] for name, by in of_rank.items() if rank in by})
        for rank in ranks
    ]
    frames = run_of(shuffled, groups=groups, ranks=about, run=run)
    return consistency(frames).to_dict("records")


def changed(
    rows: list[Any], rank: int, kind: str, columns: dict[str, Any], which: int = 0
) -> list[Any]:
    """Replace fields of a call of a rank."""
    own = [row for row in rows if (row.rank, row.kind) == (rank, kind)]
    victim = sorted(own, key=lambda row: row.id)[which]
    return [row._replace(**columns) if row is victim else row for row in rows]


def without(rows: list[Any], rank: int, kind: str, which: int = 0) -> list[Any]:
    """Remove a call of a rank; later sequence numbers move up."""
    own = [row for row in rows if (row.rank, row.kind) == (rank, kind)]
    victim = sorted(own, key=lambda row: row.id)[which]
    after = (rank, victim.group)
    return [
        row._replace(seq=row.seq - 1)
        if (row.rank, row.group) == after and row.seq > victim.seq
        else row
        for row in rows
        if row is not victim
    ]
