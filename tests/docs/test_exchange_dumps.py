"""docs/exchange.md says of each field of a flight-recorder dump what becomes of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.importers import import_trace
from commtrace.importers.flight_recorder.entries import dump_of
from commtrace.importers.flight_recorder.importer import read_dumps
from commtrace.importers.input_files import documents_of
from commtrace.schema import TABLES
from tests.commtrace.importers.flight_recorder.dumps import LEFT, START_NS, Dump, as_json, healthy
from tests.commtrace.importers.flight_recorder.layouts import DISTINCT
from tests.commtrace.importers.flight_recorder.torchcomms_dumps import Comms
from tests.commtrace.importers.tracked import fields_of, tracked
from tests.docs.exchange import DUMPS, documented

Document = dict[str, Any]
Documents = list[Document]
PAGE = documented(DUMPS)


def one_call() -> Documents:
    """An all-reduce of rank 1 in a group of ranks 0 and 1."""
    return [Dump(1, ranks={LEFT: [0, 1]}).call("all_reduce", LEFT).document()]


def batch() -> Documents:
    return [Dump(1).batch(["send 1->0", "recv 1<-0"], LEFT).document()]


def gathered() -> Documents:
    return [Dump(1).rooted("gather", [4], 1, LEFT).document()]


def of_lists() -> Documents:
    return [Dump(1).all_to_all([[1], [3]], [[2], [2]], LEFT).document()]


def of_single_tensors() -> Documents:
    return [Dump(1).all_to_all([[4]], [[4]], LEFT, function="all_to_all").document()]


def generations() -> Documents:
    return [Dump(1).call("all_reduce").anew().call("all_reduce").document()]


def on_gloo() -> Documents:
    dump = Dump(1, backend="gloo").call("all_reduce").unlisted().call("all_reduce")
    return [dump.document()]


def in_flight() -> Documents:
    """Rank 0 waits in its second call; rank 1 lists none, and has enqueued a single call."""
    first, second = Dump(0), Dump(1)
    for dump in (first, second):
        dump.call("all_reduce")
    first.call("all_reduce", state="started")
    return [each.document(only_active=True) for each in (first, second)]


def to_all() -> Documents:
    """An all-to-all of version 2.11, with split sizes."""
    dump = Dump(0).call("all_to_allv", LEFT, sizes=[[6]])
    dump.entries[0].update(input_split_sizes=[3, 3], output_split_sizes=[3, 3])
    return [dump.document()]


def of_torchcomms() -> Documents:
    comms = Comms(0, {"comm": [0, 1]}).call("split", "comm").call("split", "comm")
    return [comms.call("all_reduce", "comm").document()]


def torchcomms_in_flight() -> Documents:
    groups = {"comm": [0, 1]}
    dumps = [Comms(rank, groups).call("all_reduce", "comm") for rank in range(2)]
    for dump in dumps:
        dump.call("all_reduce", "comm", end="none")
    return [dump.document(only_active=True) for dump in dumps]


@dataclass(frozen=True, slots=True)
class Case:
    """A field that is set to a distinctive value, and the columns or facts that follow it."""

    field: str
    change: Callable[[Documents], object]
    expected: dict[str, Any]
    made: Callable[[], Documents] = one_call


def entry(place: int = 0, /, **fields: Any) -> Callable[[Documents], object]:
    """Set fields of an entry of the first dump."""
    return lambda documents: documents[0]["entries"][place].update(fields)


def about(**fields: Any) -> Callable[[Documents], object]:
    return lambda documents: documents[0].update(fields)


def group(**fields: Any) -> Callable[[Documents], object]:
    return lambda documents: documents[0]["pg_config"][LEFT].update(fields)


def last(name: str, number: int) -> Callable[[Documents], object]:
    """Set a number in the status of the rank that lists no call."""

    def change(documents: Documents) -> None:
        documents[1]["pg_status"]["0"][f"last_{name}_collective"] = number

    return change


def without_status(documents: Documents) -> None:
    """Remove the status of the rank that lists no call."""
    documents[1]["pg_status"] = {}


def unchanged(documents: Documents) -> None:
    """Leave the values that the dumps were made with."""


ELSEWHERE = [{"filename": "/x/other.py", "line": 77, "name": "run"}]
ISSUE_NS = START_NS + 1000
MEASURED = {"time_discovered_started_ns": START_NS + 50_000, "duration_ms": 0.02,
            "time_discovered_completed_ns": START_NS + 900_000}  # fmt: skip
OUTPUT = {"input_sizes": [], "input_dtypes": []}

CASES = [
    Case("record_id", entry(record_id=77), {"id": 77}),
    Case("process_group", entry(process_group=("9", "mesh_dp")), {"group": "9"}),
    Case("profiling_name", entry(profiling_name="nccl:_all_gather_base"),
         {"kind": "all_gather", "native_op": "nccl:_all_gather_base"}),
    Case("profiling_name", entry(profiling_name="nccl:send 1->0"), {"peer": 0, "seq": -1}),
    Case("profiling_name", entry(profiling_name="ucc:all_reduce"), {"groups.backend": "ucc"}),
    Case("collective_seq_id", entry(collective_seq_id=78), {"seq": 78}),
    Case("p2p_seq_id", entry(2, p2p_seq_id=9), {"complete_ns": -1}, batch),
    Case("input_sizes", entry(input_sizes=[[7, 3]]),
         {"input_shapes": "[7,3]", "payload_bytes": 42, "wire_bytes": 42}),
    Case("input_dtypes", entry(input_dtypes=["Double"]), {"dtype": "float64"}),
    Case("output_sizes", entry(output_sizes=[[7, 3]]), {"output_shapes": "[7,3]"}),
    Case("output_sizes", unchanged, {"root": 1}, gathered),
    Case("output_dtypes", entry(**OUTPUT, output_dtypes=["Double"]), {"dtype": "float64"}),
    Case("output_dtypes", entry(output_sizes=[[0]], output_dtypes=["Undefined"]), {"root": -1},
         gathered),
    Case("input_sizes", entry(input_sizes=[[1], [5]]), {"input_splits": "2,10"}, of_lists),
    Case("output_sizes", entry(output_sizes=[[1], [3]]), {"output_splits": "2,6"}, of_lists),
    Case("time_created_ns", entry(time_created_ns=START_NS + 77), {"issue_ns": START_NS + 77}),
    Case("time_discovered_completed_ns", entry(time_discovered_completed_ns=START_NS + 9999),
         {"complete_ns": START_NS + 9999}),
    Case("time_discovered_started_ns", entry(**MEASURED), {"complete_ns": START_NS + 70_000}),
    Case("duration_ms", entry(**MEASURED),
         {"complete_ns": START_NS + 70_000, "device_ns": 20_000}),
    Case("thread_id", entry(thread_id="77"), {"thread": 77}),
    Case("frames", entry(frames=[]), {"source_file": "", "stack": ""}),
    Case("filename", entry(frames=ELSEWHERE), {"source_file": "/x/other.py"}),
    Case("line", entry(frames=ELSEWHERE),
         {"source_line": 77, "stack": "/x/other.py:77 run"}),
    Case("name", entry(frames=ELSEWHERE), {"source_function": "run"}),
    Case("pg_config", about(pg_config={}), {"groups.ranks": "1"}),
    Case("ranks", group(ranks="[1, 7]"), {"groups.ranks": "1,7", "groups.size": 2}),
    Case("desc", group(desc="mesh_dp"), {"groups.description": "mesh_dp"}),
    Case("pg_id", entry(1, pg_id=0), {"last.group": "0"}, generations),
    Case("pg_id", unchanged, {"last.group": "0#2"}, generations),
    Case("op_id", unchanged, {"lacks": "(1 by the numbers of the operations)"}, on_gloo),
    Case("op_id", entry(1, op_id=5), {"lacks": "(3 by the numbers of the operations)"}, on_gloo),
    Case("rank", about(rank=0), {"ranks.rank": 0, "rank": 0}),
    Case("version", about(version="2.4"), {"payload_bytes": -1}, of_single_tensors),
    Case("entries", about(entries=[]), {"comm.rows": 0}),
    Case("pg_status", without_status, {"run.unsure_ranks": [1]}, in_flight),
    Case("last_enqueued_collective", last("enqueued", 2), {"progress": [2, 0, 1]}, in_flight),
    Case("last_started_collective", last("started", 1), {"progress": [1, 1, 1]}, in_flight),
    Case("last_completed_collective", last("completed", 0), {"progress": [1, 0, 0]}, in_flight),
    Case("input_split_sizes", entry(input_split_sizes=[1, 5]), {"input_splits": "2,10"}, to_all),
    Case("output_split_sizes", entry(output_split_sizes=[4, 2]), {"output_splits": "8,4"}, to_all),
    Case("is_p2p", entry(is_p2p=True), {"seq": 2}, of_torchcomms),
    Case("retired", entry(retired=True), {"run.partial_dumps": []}, torchcomms_in_flight),
]  # fmt: skip


def values(folder: Path, documents: Documents) -> dict[str, Any]:
    """Columns of the first call and of the first rows of other tables, and facts of the run."""
    for number, document in enumerate(documents):
        name = f"rank{number}" if len(documents) > 1 else "rank1"
        (folder / name).write_bytes(pickle.dumps(document, 2))
    frames = load(import_trace([folder]))
    found: dict[str, Any] = {"comm.rows": len(frames.comm), "lacks": str(frames.run["lacks"])}
    for name in ("unsure_ranks", "partial_dumps"):
        found[f"run.{name}"] = list(frames.run.get(name, []))
    progress = frames.communicators
    is_of_rank_1 = (progress["rank"] == 1) & (progress["group"] == "0")
    found["progress"] = (
        progress.loc[is_of_rank_1, ["num_enqueued", "num_started", "num_completed"]].sum().tolist()
    )
    for table in ("groups", "ranks"):
        rows = getattr(frames, table).to_dict("records")
        if table == "ranks":
            rows = [row for row in rows if row["start_ns"] > 0] or rows
        found |= {f"{table}.{column}": value for column, value in rows[0].items()} if rows else {}
    if len(frames.comm):
        found |= {f"last.{name}": value for name, value in frames.comm.iloc[-1].items()}
        found |= frames.comm.iloc[0].to_dict()
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.field}-{','.join(case.expected)}")
def test_a_column_follows_its_field(case: Case, tmp_path: Path) -> None:
    documents = case.made()
    before = values(tmp_path, documents)
    case.change(documents)
    found = values(tmp_path, documents)
    for name, expected in case.expected.items():
        if name == "lacks":
            assert expected in found[name]
        else:
            assert found[name] == expected, name
    follows = any(found[name] != before.get(name) for name in case.expected)
    assert follows == (case.change is not unchanged)


def test_every_documented_column_is_tested_by_a_field_that_the_page_names() -> None:
    tested = {(name, case.field) for case in CASES for name in case.expected}
    for column, code in PAGE.columns.items():
        assert any((column, field) in tested for field in code), column


def test_every_documented_field_is_tested_and_every_tested_one_documented() -> None:
    assert {case.field for case in CASES} == {name for name, used in PAGE.fields.items() if used}


def every_document() -> list[Documents]:
    """Dumps of all releases, and of all cases."""
    found = [[dump.document() for dump in healthy(torch=torch)] for torch in DISTINCT]
    for case in CASES:
        documents = case.made()
        case.change(documents)
        found.append(documents)
    return found


def test_exactly_the_fields_are_read_that_the_page_does_not_call_ignored(tmp_path: Path) -> None:
    read: set[str] = set()
    for number, documents in enumerate(every_document()):
        folder = tmp_path / str(number)
        folder.mkdir()
        for rank, document in enumerate(documents):
            (folder / f"rank{rank}").write_bytes(pickle.dumps(document, 2))
        loaded = [
            replace(each, content=tracked(each.content, read)) for each in documents_of([folder])[0]
        ]
        read_dumps([replace(each, content=dump_of(each)) for each in loaded])
    names = set(PAGE.fields) | {name for name in read if not name.isdecimal()}
    assert {name for name in names if name in read} == {
        name for name, used in PAGE.fields.items() if used
    }


@pytest.mark.parametrize("in_json", [False, True])
def test_the_page_names_every_field_of_the_dumps(in_json: bool) -> None:
    for documents in every_document():
        for document in documents:
            shown = json.loads(as_json(document)) if in_json else document
            # These have groups, and their numbers, for names.
            inner = [list(shown.pop(name, {}).values()) for name in ("pg_config", "pg_status")]
            assert fields_of([shown, *inner]) <= set(PAGE.fields)


def test_columns_of_the_page_are_those_of_the_schema() -> None:
    for column in PAGE.columns:
        table, _, name = column.rpartition(".")
        assert name in [each.name for each in TABLES[table or "comm"]], column
