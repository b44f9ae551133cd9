"""A dataset is read in part, is not used once it is stale, and is not trusted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commtrace.errors import (
    InvalidTraceError,
    NewerTraceError,
    NotATraceError,
    OversizedTraceError,
    TraceError,
    TruncatedTraceError,
    UsageError,
)
from commtrace.schema import TABLES
from commtrace.tracefile import Trace, read_parts, read_trace, spool_name
from commtrace.tracefile.dataset import StoredRows, open_dataset, prepare_dataset
from commtrace.tracefile.dataset.layout import digest_of
from commtrace.tracefile.dataset.reading import Dataset
from commtrace.tracefile.dataset.table_files import TableFile, footer_digest
from tests.commtrace.synthetic import write_synthetic_spools
from tests.commtrace.tracefile.dataset.runs import same


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    prepare_dataset(folder)
    return folder


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "dataset" / "manifest.json").read_text())


def change_manifest(folder: Path, **changes: Any) -> None:
    """Write the manifest as a program would that means these contents."""
    path = folder / "dataset" / "manifest.json"
    document = {**manifest_of(folder), **changes}
    del document["digest"]
    digest = digest_of(json.dumps(document).encode())
    path.write_text(json.dumps({**document, "digest": digest}))


def accept(folder: Path, name: str) -> None:
    """State in the manifest that a file is as it was written."""
    digest = footer_digest(folder / "dataset" / name)
    change_manifest(folder, files={**manifest_of(folder)["files"], name: digest})


def test_facts_and_rows_are_known_without_reading_them(folder: Path) -> None:
    trace = read_parts([folder])
    dataset = open_dataset(folder)
    shutil.rmtree(folder / "dataset" / "comm")
    assert dataset.ranks == (0, 1, 2, 3)
    assert dict(dataset.run) == dict(trace.run)
    assert dataset.num_rows("comm", 2) == list(trace.tables["comm"]["rank"]).count(2)
    assert dataset.num_rows("groups") == 1


def test_only_the_ranks_and_columns_asked_for_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, Any]] = []
    original = TableFile.read

    def spied(self: TableFile, strings: Any, only: Any = None) -> Any:
        read.append((self.path.parent.name, only))
        return original(self, strings, only)

    monkeypatch.setattr(TableFile, "read", spied)
    trace = open_dataset(folder).trace(ranks=[3, 1], columns={"comm": ["kind", "issue_ns"]})
    assert [each for each in read if each[0] != "dataset"] == [
        ("comm", {"rank", "kind", "issue_ns"})
    ] * 2
    whole = read_parts([folder]).tables["comm"]
    rows = [row for row, rank in enumerate(whole["rank"]) if rank in (1, 3)]
    for name in ("rank", "kind", "issue_ns"):
        assert list(trace.tables["comm"][name]) == [whole[name][row] for row in rows]
    assert set(trace.tables["comm"]["call_ns"]) == {-1}
    assert set(trace.tables["comm"]["module"]) == {""}
    assert trace.num_rows("ops") == 0
    assert list(trace.tables["ranks"]["rank"]) == [1, 3]
    assert trace.num_rows("groups") == 1


def test_a_column_without_a_known_value_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original: Any = TableFile._row_group  # pyright: ignore[reportPrivateUsage]

    def spied(self: TableFile, number: int, names: list[str]) -> Any:
        read.extend(names)
        return original(self, number, names)

    monkeypatch.setattr(TableFile, "_row_group", spied)
    rows = StoredRows(open_dataset(folder), "comm", [2])
    whole = read_parts([folder]).tables["comm"]
    places = [row for row, rank in enumerate(whole["rank"]) if rank == 2]
    for column in TABLES["comm"]:
        (found,) = rows.columns([column.name]).values()
        assert list(found) == [whole[column.name][row] for row in places]
    never = {"algorithm", "protocol", "stream", "device_ns"}
    assert not never & set(read)
    assert {"kind", "issue_ns", "module", "op_id"} <= set(read)


def test_a_rank_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot read rank 9"):
        open_dataset(folder).trace(ranks=[0, 9])


def test_a_folder_is_read_from_its_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = read_parts([folder])
    read: list[Path] = []
    original = Dataset.trace
    monkeypatch.setattr(
        Dataset, "trace", lambda self: (read.append(self.folder), original(self))[1]
    )
    trace = read_trace(folder)
    assert read == [folder]
    assert same(trace, parts)
    assert trace.path == folder


def grown(folder: Path) -> None:
    path = folder / spool_name(1)
    path.write_bytes(path.read_bytes()[:-9])


def added(folder: Path) -> None:
    shutil.copy2(folder / spool_name(1), folder / "rank-00001.7.spool")


def removed(folder: Path) -> None:
    (folder / spool_name(1)).unlink()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (grown, "a part rank-00001.spool that has changed"),
        (added, "another part rank-00001.7.spool"),
        (removed, "no part rank-00001.spool"),
    ],
)
def test_a_stale_dataset_is_not_used(change: Any, found: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(TraceError) as error:
        open_dataset(folder)
    assert str(error.value) == (
        f"cannot read the dataset {folder}/dataset\n"
        f"  at: {folder}\n"
        f"  found: {found}\n"
        "  why: the dataset was made of other parts\n"
        f"  try: `commtrace merge {folder}` prepares it again"
    )
    assert same(read_trace(folder), read_parts([folder]))


def test_without_the_parts_the_dataset_is_the_run(folder: Path) -> None:
    parts = read_parts([folder])
    for path in folder.glob("*.spool"):
        path.unlink()
    assert same(read_trace(folder), parts)


def test_without_pyarrow_the_parts_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = read_parts([folder])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert same(read_trace(folder), parts)
    for path in folder.glob("*.spool"):
        path.unlink()
    with pytest.raises(UsageError, match=r"pip install 'commtrace\[parquet\]'"):
        read_trace(folder)


@pytest.mark.parametrize("name", ["version", "trace_version"])
def test_a_dataset_of_a_newer_version_is_refused_and_its_parts_are_read(
    name: str, folder: Path
) -> None:
    parts = read_parts([folder])
    change_manifest(folder, **{name: 99})
    with pytest.raises(NewerTraceError, match=f"found: {name} 99"):
        open_dataset(folder)
    assert same(read_trace(folder), parts)
    for path in folder.glob("*.spool"):
        path.unlink()
    with pytest.raises(NewerTraceError):
        read_trace(folder)


def test_an_unfinished_dataset_is_none(folder: Path) -> None:
    (folder / "dataset" / "manifest.json").unlink()
    with pytest.raises(NotATraceError, match=r"no manifest\.json"):
        open_dataset(folder)
    assert same(read_trace(folder), read_parts([folder]))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "commtrace-dataset"}'])
def test_a_damaged_manifest_is_refused(text: str, folder: Path) -> None:
    (folder / "dataset" / "manifest.json").write_text(text)
    with pytest.raises(TraceError, match=r"dataset/manifest\.json"):
        open_dataset(folder)


@pytest.mark.parametrize(
    "rows",
    [{"comm": [[0, -1]]}, {"comm": [[-3, 1]]}, {"groups": [1]}, {"steps": [[0]]}],
)
def test_impossible_counts_of_a_manifest_are_refused(rows: dict[str, Any], folder: Path) -> None:
    change_manifest(folder, rows={**manifest_of(folder)["rows"], **rows})
    with pytest.raises(TraceError, match="rows of"):
        open_dataset(folder)


@pytest.mark.parametrize("rows", [{"comm": [[0, 29]]}, {"groups": 2}, {"ops": [[0, 1 << 60]]}])
def test_wrong_counts_of_a_manifest_are_refused(rows: dict[str, Any], folder: Path) -> None:
    before = manifest_of(folder)["rows"]
    (name,) = rows
    whole = rows if name == "groups" else {name: [*rows[name], *before[name][1:]]}
    change_manifest(folder, rows={**before, **whole})
    with pytest.raises(TruncatedTraceError) as error:
        open_dataset(folder).trace()
    assert "rows, where manifest.json has" in str(error.value)
    assert f"remove {folder}/dataset, and `commtrace merge {folder}`" in str(error.value)


def without_one(pairs: list[Any]) -> list[Any]:
    return pairs[:2] + pairs[3:]


@pytest.mark.parametrize("table", ["comm", "ops", "fingerprints", "steps", "host_events"])
def test_a_rank_that_one_table_lacks_is_damage_not_a_rank_without_rows(
    table: str, folder: Path
) -> None:
    rows = manifest_of(folder)["rows"]
    change_manifest(folder, rows={**rows, table: without_one(rows[table])})
    with pytest.raises(TruncatedTraceError, match=f"found: rows of {table}: no rank 2"):
        open_dataset(folder)


def test_a_rank_that_all_tables_lack_is_damage(folder: Path) -> None:
    rows = manifest_of(folder)["rows"]
    of_ranks = {name: each for name, each in rows.items() if isinstance(each, list)}
    less = {**rows, **{name: without_one(each) for name, each in of_ranks.items()}}
    change_manifest(folder, rows=less)
    with pytest.raises(TruncatedTraceError, match="rows of comm: 3 ranks, of 4"):
        open_dataset(folder)
    change_manifest(folder, rows={**less, "ranks": 3})
    with pytest.raises(TruncatedTraceError, match=r"another file comm/rank-00002\.parquet"):
        open_dataset(folder)


def test_a_rank_that_is_there_twice_is_damage(folder: Path) -> None:
    rows = manifest_of(folder)["rows"]
    change_manifest(folder, rows={**rows, "comm": [*rows["comm"], rows["comm"][0]]})
    with pytest.raises(TruncatedTraceError, match="rows of comm: a rank twice"):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"comm/rank-00000.parquet": None}, r"no file comm/rank-00000\.parquet"),
        ({"groups.parquet": None}, r"no file groups\.parquet"),
        ({"comm/rank-00007.parquet": "0"}, r"another file comm/rank-00007\.parquet"),
        ({"../rank.parquet": "0"}, r"another file \.\./rank\.parquet"),
    ],
)
def test_a_manifest_that_names_other_files_is_refused(
    files: dict[str, Any], found: str, folder: Path
) -> None:
    changed = {**manifest_of(folder)["files"], **files}
    change_manifest(folder, files={name: each for name, each in changed.items() if each})
    with pytest.raises(TruncatedTraceError, match=found):
        open_dataset(folder)


@pytest.mark.parametrize("name", ["/etc/rank.spool", "../rank.spool", "a/../../rank.spool"])
def test_a_part_outside_of_the_folder_is_refused(name: str, folder: Path) -> None:
    change_manifest(folder, parts=[*manifest_of(folder)["parts"], [name, 1, 1]])
    with pytest.raises(TruncatedTraceError, match="a part outside of the folder"):
        open_dataset(folder)


def test_a_part_that_is_named_twice_is_refused(folder: Path) -> None:
    parts = manifest_of(folder)["parts"]
    change_manifest(folder, parts=[*parts, parts[0]])
    with pytest.raises(TruncatedTraceError, match="a part twice"):
        open_dataset(folder)


def test_no_changed_byte_of_a_manifest_is_believed(folder: Path) -> None:
    path = folder / "dataset" / "manifest.json"
    data = path.read_bytes()
    for place in range(0, len(data) - 1, 41):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(TraceError):
            open_dataset(folder)


def test_a_dataset_of_a_former_version_is_prepared_again(folder: Path) -> None:
    change_manifest(folder, version=1)
    with pytest.raises(TraceError, match="found: version 1\n") as error:
        open_dataset(folder)
    assert f"try: `commtrace merge {folder}` prepares it again" in str(error.value)
    assert same(read_trace(folder), read_parts([folder]))
    prepare_dataset(folder)
    open_dataset(folder)


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """The dataset of another run, with as many rows."""
    folder = write_synthetic_spools(tmp_path / "OTHER.comm")
    for path in folder.glob("*.spool"):
        os.utime(path, ns=(1, 1))
    prepare_dataset(folder)
    return folder


def swap(one: Path, other: Path) -> None:
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


@pytest.mark.parametrize("table", ["comm", "ops"])
def test_intact_files_that_ranks_have_exchanged_are_refused(table: str, folder: Path) -> None:
    whole = open_dataset(folder)
    assert len({whole.num_rows(table, rank) for rank in (1, 2)}) == 1
    files = [folder / "dataset" / table / f"rank-0000{rank}.parquet" for rank in (1, 2)]
    swap(*files)
    with pytest.raises(TruncatedTraceError) as error:
        read_trace(folder)
    expected = manifest_of(folder)["files"][f"{table}/rank-00001.parquet"]
    assert str(error.value) == (
        f"cannot read the dataset {folder}/dataset\n"
        f"  at: {files[0]}\n"
        f"  found: the contents of {table}/rank-00002.parquet, where manifest.json has digest "
        f"{expected}\n"
        "  why: the file was truncated or modified after it was written\n"
        f"  try: remove {folder}/dataset, and `commtrace merge {folder}` prepares it again"
    )
    with pytest.raises(TruncatedTraceError, match="the contents of"):
        StoredRows(open_dataset(folder), table, [2]).columns(["rank"])
    prepare_dataset(folder)
    assert same(read_trace(folder), read_parts([folder]))


@pytest.mark.parametrize("name", ["comm/rank-00001", "kernels/rank-00001", "groups", "steps"])
def test_an_intact_file_of_another_run_is_refused(name: str, folder: Path, others: Path) -> None:
    shutil.copy2(others / "dataset" / f"{name}.parquet", folder / "dataset" / f"{name}.parquet")
    with pytest.raises(TruncatedTraceError, match="other contents, with digest"):
        read_trace(folder)


def test_advice_for_a_dataset_without_spools_is_not_to_remove_it(folder: Path) -> None:
    for path in folder.glob("*.spool"):
        path.unlink()
    (folder / "dataset" / "comm" / "rank-00002.parquet").unlink()
    with pytest.raises(TruncatedTraceError, match="try: copy it again: there are no spools"):
        read_trace(folder)


@pytest.mark.parametrize("num", [0, 3, 4, 100, -1, -9])
def test_a_truncated_file_is_refused_by_name(num: int, folder: Path) -> None:
    path = folder / "dataset" / "comm" / "rank-00002.parquet"
    path.write_bytes(path.read_bytes()[:num])
    with pytest.raises(TruncatedTraceError, match=r"comm/rank-00002\.parquet"):
        read_trace(folder)


def test_a_missing_file_is_refused_by_name(folder: Path) -> None:
    (folder / "dataset" / "comm" / "rank-00002.parquet").unlink()
    with pytest.raises(TraceError, match=r"comm/rank-00002\.parquet"):
        read_trace(folder)


def test_every_changed_byte_of_a_file_is_noticed_or_without_effect(folder: Path) -> None:
    parts = read_parts([folder])
    path = folder / "dataset" / "comm" / "rank-00002.parquet"
    data = path.read_bytes()
    num_noticed = 0
    for place in range(0, len(data), 211):
        changed = bytearray(data)
        changed[place] ^= 0x5A
        path.write_bytes(bytes(changed))
        try:
            trace = read_trace(folder)
        except TraceError:
            num_noticed += 1
            continue
        assert same(trace, parts)
    assert num_noticed > 20


def rewritten(folder: Path, table: str, change: Any) -> None:
    path = folder / "dataset" / table / "rank-00002.parquet"
    rows = pq.ParquetFile(path).read()
    pq.write_table(change(rows), path)
    accept(folder, f"{table}/rank-00002.parquet")


def replaced(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def test_values_that_no_recording_has_are_refused(folder: Path) -> None:
    def change(rows: pa.Table) -> pa.Table:
        return replaced(rows, "call_ns", pa.array([-7] * rows.num_rows))

    rewritten(folder, "comm", change)
    with pytest.raises(InvalidTraceError, match=r"tables\.comm\.columns\.call_ns: -7"):
        read_trace(folder)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kind", lambda num: pa.array([1] * num)),
        ("issue_ns", lambda num: pa.array(["x"] * num)),
        ("issue_ns", lambda num: pa.array([0.5] * num)),
        ("is_async", lambda num: pa.array([1] * num)),
        ("is_async", lambda num: pa.array([None] * num, pa.bool_())),
        ("step", lambda num: pa.array([None] * num, pa.int64())),
        ("stack", lambda num: pa.array([["x"]] * num)),
    ],
)
def test_columns_of_another_type_are_refused(name: str, values: Any, folder: Path) -> None:
    rewritten(folder, "comm", lambda rows: replaced(rows, name, values(rows.num_rows)))
    with pytest.raises(TruncatedTraceError, match=rf"rank-00002\.parquet\n  found: .*{name}"):
        read_trace(folder)


def test_a_missing_column_is_refused(folder: Path) -> None:
    rewritten(folder, "ops", lambda rows: rows.drop_columns(["parent"]))
    with pytest.raises(TruncatedTraceError, match="parent"):
        read_trace(folder)


def test_a_file_that_claims_more_than_its_size_allows_is_refused_before_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = 20_000_000
    columns = {column.name: pa.nulls(1, pa.int64()) for column in TABLES["ops"]}
    path = folder / "dataset" / "ops" / "rank-00002.parquet"
    rows = pa.table({name: pa.repeat(values[0], num) for name, values in columns.items()})
    pq.write_table(rows, path, row_group_size=num)
    accept(folder, "ops/rank-00002.parquet")
    change_manifest(
        folder, rows={**manifest_of(folder)["rows"], "ops": [[0, 30], [1, 30], [2, num], [3, 30]]}
    )
    with pytest.raises(OversizedTraceError, match="20,000,000 rows"):
        read_trace(folder)


def test_the_union_of_ranks_has_the_facts_of_the_run(folder: Path) -> None:
    traces: list[Trace] = [open_dataset(folder).trace(ranks=[rank]) for rank in range(4)]
    assert [dict(each.run) for each in traces] == [dict(read_parts([folder]).run)] * 4
