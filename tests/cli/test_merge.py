"""`commtrace merge`: spools of ranks become a run file that names any missing parts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from commtrace.tracefile import read_trace, spool_name
from commtrace.tracefile.dataset import open_dataset
from commtrace.tracefile.run_folder import PREPARED
from tests.cli.conftest import Commtrace
from tests.commtrace.synthetic import write_synthetic_spools


def test_spools_become_a_run_file(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "run.json.spools")
    ended = commtrace("merge", folder, "-o", "joined.json")
    assert (ended.code, ended.out) == (0, "")
    assert "next  commtrace report joined.json" in ended.err
    assert read_trace(tmp_path / "joined.json").tables == read_trace(folder).tables
    assert folder.is_dir()


def test_missing_and_interrupted_ranks_are_named(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=4)
    (folder / spool_name(1)).unlink()
    (folder / spool_name(3)).write_bytes(b"")
    spool = folder / spool_name(2)
    spool.write_bytes(spool.read_bytes()[:-3])
    ended = commtrace("merge", folder)
    assert ended.code == 0
    assert "note: no part of ranks 1, 3" in ended.err
    assert "note: not closed by rank 2" in ended.err
    assert read_trace(tmp_path / "run.json").run["missing_ranks"] == [1, 3]


def test_a_file_is_not_overwritten_unasked(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools")
    (tmp_path / "run.json").touch()
    assert commtrace("merge", folder).code == 2
    assert commtrace("merge", folder, "--force").code == 0


def test_a_folder_without_spools_is_reported_to_have_none(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    ended = commtrace("merge", tmp_path / "empty")
    assert ended.code == 3
    assert "a folder without a *.spool file" in ended.err
    assert not (tmp_path / "run.json").exists()


def test_what_is_missing_or_foreign_is_reported_so(commtrace: Commtrace, tmp_path: Path) -> None:
    ended = commtrace("merge", "nowhere")
    assert (ended.code, ended.err) == (
        3,
        "error: cannot read the trace nowhere\n"
        "  found: no such file or folder\n"
        "  why: a part of a run is a *.spool file, a run file, or a folder of those\n"
        "  try: pass the folder of the run, RUN.comm, or the spools of an interrupted "
        "run, run.json.spools\n",
    )
    (tmp_path / "notes.json").write_text("[]")
    assert "  found: JSON of another format\n" in commtrace("merge", "notes.json").err


def test_parts_of_several_nodes_are_joined_in_any_order(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    everything = write_synthetic_spools(tmp_path / "all", world_size=6)
    nodes = [tmp_path / f"node{number}" / "RUN.comm" for number in range(2)]
    for rank in range(6):
        node = nodes[rank // 3]
        node.mkdir(parents=True, exist_ok=True)
        (everything / spool_name(rank)).rename(node / spool_name(rank))
    assert commtrace("merge", nodes[0], "-o", "node0.json").code == 0
    lone = (nodes[1] / spool_name(5)).rename(tmp_path / "lone.spool")
    ended = commtrace("merge", lone, nodes[1], "node0.json", nodes[0], "-o", "joined.json")
    assert ended.code == 0
    assert "note" not in ended.err
    joined = read_trace(tmp_path / "joined.json")
    write_synthetic_spools(tmp_path / "all", world_size=6)
    assert joined.tables == read_trace(tmp_path / "all").tables
    assert joined.run["missing_ranks"] == []


def test_what_a_part_of_the_nodes_lacks_is_named(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "node0" / "RUN.comm", world_size=4)
    for rank in (2, 3):
        (folder / spool_name(rank)).unlink()
    assert "note: no part of ranks 2, 3" in commtrace("merge", tmp_path / "node0").err


def test_parts_are_copied_into_a_folder(commtrace: Commtrace, tmp_path: Path) -> None:
    nodes = [
        write_synthetic_spools(tmp_path / f"node{number}" / "run.json.spools", world_size=2)
        for number in range(2)
    ]
    (nodes[0] / spool_name(1)).unlink()
    (nodes[1] / spool_name(0)).unlink()
    (nodes[1] / spool_name(1)).rename(nodes[1] / spool_name(0))  # its name does not matter
    ended = commtrace("merge", *nodes, "-o", "RUN.comm")
    assert (ended.code, "note" in ended.err) == (0, False)
    names = {path.name for path in (tmp_path / "RUN.comm").iterdir()}
    assert names == {"manifest.json", "rank-00000.spool", "rank-00000.1.spool"}
    assert list(read_trace(tmp_path / "RUN.comm").tables["ranks"]["rank"]) == [0, 1]
    assert commtrace("merge", *nodes, "-o", "RUN.comm").code == 2
    assert commtrace("merge", *nodes, "-o", "RUN.comm", "--force").code == 0
    assert {path.name for path in (tmp_path / "RUN.comm").iterdir()} == names
    refused = commtrace("merge", "RUN.comm", "-o", "RUN.comm", "--force")
    assert (refused.code, "a file that this command reads" in refused.err) == (2, True)


def test_a_folder_is_not_replaced_by_one_of_its_parts(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    before = sorted(folder.iterdir())
    for part in (folder / spool_name(0), "RUN.comm/../RUN.comm/rank-00001.spool"):
        refused = commtrace("merge", part, "-o", "RUN.comm", "--force")
        assert (refused.code, "a file that this command reads" in refused.err) == (2, True)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("dataset", [(), ("--dataset",)])
def test_a_folder_appears_with_all_of_its_parts(
    commtrace: Commtrace,
    tmp_path: Path,
    dataset: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_synthetic_spools(tmp_path / "node0")
    copy, found = shutil.copyfileobj, list[bool]()

    def copied(*streams: Any) -> None:
        found.append((tmp_path / "RUN.comm").exists())
        copy(*streams)

    monkeypatch.setattr("shutil.copyfileobj", copied)
    assert commtrace("merge", folder, "-o", "RUN.comm", *dataset).code == 0
    assert found == [False] * 4
    assert read_trace(tmp_path / "RUN.comm").run["missing_ranks"] == []
    assert {path.name for path in tmp_path.iterdir()} == {"node0", "RUN.comm"}


def test_an_earlier_copy_is_replaced_and_foreign_files_stay(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    first = write_synthetic_spools(tmp_path / "first", world_size=2)
    assert commtrace("merge", first, "-o", "node.json").code == 0
    assert commtrace("merge", "node.json", "-o", "RUN.comm").code == 0
    (tmp_path / "RUN.comm" / "notes.txt").write_text("mine")
    assert commtrace("merge", first, "-o", "RUN.comm", "--force").code == 0
    names = {path.name for path in (tmp_path / "RUN.comm").iterdir()}
    assert names == {"manifest.json", "notes.txt", spool_name(0), spool_name(1)}


@pytest.mark.parametrize("dataset", [(), ("--dataset",)])
def test_an_earlier_run_stays_until_another_one_is_complete(
    commtrace: Commtrace, tmp_path: Path, dataset: tuple[str, ...]
) -> None:
    first = write_synthetic_spools(tmp_path / "first", world_size=2)
    assert commtrace("merge", first, "-o", "RUN.comm", "--dataset").code == 0
    (tmp_path / "RUN.comm" / "dataset" / PREPARED / "x").mkdir(parents=True)
    broken = write_synthetic_spools(tmp_path / "broken", world_size=1)
    (broken / spool_name(0)).write_bytes(b"not a spool, and longer than its opening")
    before = sorted((tmp_path / "RUN.comm").rglob("*"))
    ended = commtrace("merge", broken, "-o", "RUN.comm", "--force", *dataset)
    assert ended.code == 3
    assert sorted((tmp_path / "RUN.comm").rglob("*")) == before
    assert read_trace(tmp_path / "RUN.comm").num_rows("comm") == 60
    other = write_synthetic_spools(tmp_path / "other", world_size=3)
    assert commtrace("merge", other, "-o", "RUN.comm", "--force", *dataset).code == 0
    assert read_trace(tmp_path / "RUN.comm").num_rows("comm") == 90
    assert (tmp_path / "RUN.comm" / "dataset").exists() == bool(dataset)
    assert not (tmp_path / "RUN.comm" / "dataset" / PREPARED).exists()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"first", "broken", "other", "RUN.comm"}


def test_a_run_that_can_not_begin_removes_nothing(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    before = sorted(folder.iterdir())
    refused = commtrace("run", "--nproc", "1", "-o", "RUN.comm", "--force", "missing.py")
    assert (refused.code, sorted(folder.iterdir())) == (2, before)


def test_a_folder_of_a_run_gets_a_dataset_from_which_it_is_read(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm", world_size=3)
    (folder / spool_name(1)).unlink()
    printed = [commtrace(*words).out for words in (("summary", folder), ("dump", folder, "comm"))]
    ended = commtrace("merge", "RUN.comm")
    assert (ended.code, ended.out) == (0, "")
    assert "note: no part of rank 1\n" in ended.err
    assert ", 60 calls of 2 ranks\n" in ended.err
    assert "wrote RUN.comm/dataset\nnext  commtrace report RUN.comm\n" in ended.err
    assert not (tmp_path / "run.json").exists()
    for path in folder.glob("*.spool"):
        path.unlink()
    again = [commtrace(*words).out for words in (("summary", folder), ("dump", folder, "comm"))]
    assert again == printed


def test_parts_that_are_copied_get_a_dataset_if_asked_for(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    folder = write_synthetic_spools(tmp_path / "node0", world_size=2)
    assert commtrace("merge", folder, "-o", "RUN.comm", "--dataset").code == 0
    assert open_dataset(tmp_path / "RUN.comm").num_rows("comm") == 60
    assert not (folder / "dataset").exists()
    assert commtrace("merge", folder, "-o", "RUN.comm", "--force").code == 0
    assert not (tmp_path / "RUN.comm" / "dataset").exists()
    assert commtrace("merge", folder, "--dataset", "--workers", "1").code == 0
    assert open_dataset(folder).num_rows("comm") == 60


def test_a_dataset_without_spools_cannot_be_merged_and_stays(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm", world_size=2)
    assert commtrace("merge", "RUN.comm").code == 0
    for path in folder.glob("*.spool"):
        path.unlink()
    before = sorted(folder.rglob("*"))
    for words in ((), ("-o", "run.json"), ("-o", "OTHER.comm")):
        ended = commtrace("merge", "RUN.comm", *words)
        assert ended.code == 3
        assert "  found: a dataset, and no *.spool file\n" in ended.err
        assert "RUN.comm`, which reads the dataset as it is\n" in ended.err
    assert sorted(folder.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["RUN.comm"]


@pytest.mark.parametrize("words", [("-o", "run.json"), ("-o", "x"), ()])
def test_a_dataset_needs_a_folder(
    words: tuple[str, ...], commtrace: Commtrace, tmp_path: Path
) -> None:
    folder = write_synthetic_spools(tmp_path / "node0", world_size=2)
    ended = commtrace("merge", folder / spool_name(0), *words, "--dataset")
    assert ended.code == 2
    assert "  why: a dataset is a part of a folder\n  try: -o RUN.comm\n" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["node0"]
