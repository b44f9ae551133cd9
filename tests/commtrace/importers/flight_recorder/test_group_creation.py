"""Dumps of ranks that have created their groups in different orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.dumps import ALL, Dump, as_json, write_dumps


def faults(folder: Path) -> list[dict[str, Any]]:
    rows = CATALOG["consistency"].function(load(import_trace([folder]))).to_dict("records")
    return [row for row in rows if row["is_fault"]]


@pytest.mark.parametrize(("culprits", "blamed"), [([2], "2"), ([0, 1], "0,1,2,3"), ([], None)])
def test_another_order_of_numbers_is_a_fault(
    culprits: list[int], blamed: str | None, tmp_path: Path
) -> None:
    ranks = {ALL: [0, 1, 2, 3], "1": [0, 1, 2, 3], "2": [0, 1, 2, 3]}
    dumps = [Dump(rank, ranks=ranks).call("all_reduce", "1") for rank in range(4)]
    for dump in dumps:
        dump.call("all_gather", "2")
        if dump.rank in culprits:
            for entry in dump.entries:
                entry["pg_id"] = 3 - entry["pg_id"]
    rows = faults(write_dumps(tmp_path, dumps))
    found = [(row["problem"], row["ranks"], row["is_one_of_ranks"]) for row in rows]
    is_tie = len(culprits) == 2
    assert found == ([] if blamed is None else [("group order", blamed, is_tie)])


def test_one_name_with_other_members_is_a_fault(tmp_path: Path) -> None:
    """Rank 0 has created the group of all ranks first, the others the group of ranks 0 and 1."""
    dumps = []
    for rank in range(4):
        groups = {ALL: [0, 1, 2, 3], "1": [0, 1], "2": [0, 1, 2, 3]}
        if rank == 0:
            groups["1"], groups["2"] = groups["2"], groups["1"]
        dumps.append(Dump(rank, ranks=groups).call("all_reduce", ALL))
    found = faults(write_dumps(tmp_path, dumps))
    assert {row["problem"] for row in found} == {"group order"}
    assert {row["ranks"] for row in found if not row["is_one_of_ranks"]} == {"0"}


def test_numbers_that_skip_groups_of_other_ranks_are_no_fault(tmp_path: Path) -> None:
    dumps = []
    for rank in range(4):
        half = "1" if rank < 2 else "2"
        groups = {ALL: [0, 1, 2, 3], half: [0, 1] if rank < 2 else [2, 3], "3": [0, 1, 2, 3]}
        dump = Dump(rank, ranks=groups)
        for group in (ALL, half, "3"):
            dump.call("all_reduce", group)
        for entry in dump.entries:
            entry["pg_id"] = [ALL, half, "3"].index(entry["process_group"][0])
        dumps.append(dump)
    assert faults(write_dumps(tmp_path, dumps)) == []


def test_groups_without_a_name_are_not_compared(tmp_path: Path) -> None:
    """gloo states its groups without names, each in place of the previous group."""
    for rank in range(4):
        last = [0, 1, 2, 3] if rank else [0, 1]
        config = {"": {"name": "", "desc": "", "ranks": str(last)}}
        document = Dump(rank, backend="gloo").call("all_reduce").document() | {"pg_config": config}
        (tmp_path / f"dump_rank{rank}.json").write_text(as_json(document))
    frames = load(import_trace([tmp_path]))
    assert CATALOG["consistency"].function(frames).empty
    assert frames.groups["ranks"].tolist() == ["0,1,2,3"]
