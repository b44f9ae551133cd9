"""Damaged and malicious dumps are refused with the place; unneeded fields are not checked."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.errors import TraceError
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.dumps import Dump


def of_dump(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(fields)


def of_entry(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["entries"][1].update(fields)


def of_group(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["pg_config"]["0"].update(fields)


@pytest.mark.parametrize(
    ("change", "place", "found"),
    [
        (of_dump(version="1.5"), "version", "'1.5'"),
        (of_dump(version="3.0"), "version", "'3.0'"),
        (of_dump(version=10**6000), "version", "a very large number"),
        (of_dump(entries=[3]), "entries[0]", "3, where an entry is expected"),
        (of_dump(pg_config=[]), "pg_config", "[], where an object"),
        (of_dump(pg_config={3: {}}), "pg_config", "{3: {}}"),
        (of_group(ranks="0, 0"), "pg_config.0", "{"),
        (of_group(ranks="0, x"), "pg_config.0", "{"),
        (of_group(ranks="[" * 9000), "pg_config.0", "{"),
        (of_group(ranks=[1 << 20]), "pg_config.0", "{"),
        (of_group(desc=3), "pg_config.0", "{"),
        (of_entry(record_id=None), "entries[1].record_id", "None, where a count is expected"),
        (of_entry(record_id=-1), "entries[1].record_id", "-1"),
        (of_entry(collective_seq_id=1 << 62), "entries[1].collective_seq_id", "4611"),
        (of_entry(time_created_ns="x"), "entries[1].time_created_ns", "'x', where a time in nano"),
        (of_entry(time_created_ns=1 << 63), "entries[1].time_created_ns", "9223"),
        (of_entry(process_group=["0"]), "entries[1].process_group", "['0']"),
        (of_entry(process_group="01"), "entries[1].process_group", "'01'"),
        (of_entry(profiling_name=[]), "entries[1].profiling_name", "[], where a name"),
        (of_entry(input_sizes=[[-1]]), "entries[1].input_sizes", "[[-1]]"),
        (of_entry(input_sizes=[[1] * 99]), "entries[1].input_sizes", "[[1, "),
        (of_entry(output_sizes=[[10**18]]), "entries[1].output_sizes", "[[1"),
        (of_entry(output_sizes={}), "entries[1].output_sizes", "{}"),
        (of_entry(input_dtypes=[0]), "entries[1].input_dtypes", "[0]"),
        (of_entry(is_p2p=1), "entries[1].is_p2p", "1, where true or false"),
        (of_entry(duration_ms=float("nan")), "entries[1].duration_ms", "nan"),
        (of_entry(duration_ms=float("inf")), "entries[1].duration_ms", "inf"),
        (of_entry(duration_ms=-1), "entries[1].duration_ms", "-1"),
        (of_entry(frames=[{"name": 1}]), "entries[1].frames", "[{'name': 1}]"),
        (of_entry(frames="abc"), "entries[1].frames", "'abc'"),
    ],
)
def test_an_impossible_value_is_refused_with_its_place(
    change: Callable[[dict[str, Any]], Any], place: str, found: str, tmp_path: Path
) -> None:
    document = Dump(0).call("all_reduce").call("broadcast").document()
    change(document)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(document))
    with pytest.raises(TraceError) as raised:
        import_trace([path])
    error = raised.value
    assert (error.place, error.found[: len(found)]) == (place, found)
    assert all((error.summary, error.why, error.attempt))
    assert len(str(error)) < 1000


def test_a_long_string_in_many_places_is_refused(tmp_path: Path) -> None:
    document = Dump(0).call("all_reduce").call("all_reduce").document()
    name = "x" * 5000
    document["entries"][1]["frames"] = [{"name": name, "filename": name, "line": 1}] * 1000
    (tmp_path / "rank_0").write_bytes(pickle.dumps(document))
    with pytest.raises(TraceError, match=r"at: entries\[1\].frames"):
        import_trace([tmp_path])


def test_stacks_of_more_text_than_any_program_has_are_refused(tmp_path: Path) -> None:
    document = Dump(0).call("all_reduce").document()
    frames = [{"name": "x" * 4096, "filename": "y" * 4096, "line": 1}] * 1000
    (entry,) = document["entries"]
    document["entries"] = [
        entry | {"record_id": number, "collective_seq_id": number + 1, "frames": frames[number:]}
        for number in range(70)
    ]
    (tmp_path / "rank_0").write_bytes(pickle.dumps(document))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=r"stacks of 5\d\d,\d{3},\d{3} characters"):
            import_trace([tmp_path])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "fields",
    [
        {"pg_status": {"x": {}, "0": [], "1": {"last_enqueued_collective": "y"}}},
        {"pg_status": None},
        {"nccl_comm_state": {"0x1": {"rank": "7"}}},
        {"pg_config": None},
        {"later": [None]},
    ],
)
def test_what_is_not_needed_is_not_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    document = Dump(0).call("all_reduce").document()
    (tmp_path / "rank_0.json").write_text(json.dumps(document | fields))
    assert len(load(import_trace([tmp_path])).comm) == 1
