"""`commtrace import`: foreign recordings become a run file, or are refused with the reason."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from commtrace.tracefile import read_trace
from tests.cli.conftest import Commtrace
from tests.commtrace.importers.device_times.exported import Export
from tests.commtrace.importers.flight_recorder.dumps import Dump, healthy, write_dumps
from tests.commtrace.importers.inspector.layouts import LAYOUTS
from tests.commtrace.importers.ras.layouts import communicator, rank, snapshot, write


def test_dumps_become_a_run_file_that_can_be_checked(commtrace: Commtrace, tmp_path: Path) -> None:
    write_dumps(tmp_path / "dumps", healthy())
    ended = commtrace("import", "dumps", "-o", "run.json", columns=None)
    assert (ended.code, ended.out) == (0, "")
    assert "imported 84 calls of 4 ranks from flight recorder" in ended.err
    assert (
        "note: the source lacks roots (except of gathers and scatters), reductions, modules"
        in ended.err
    )
    assert "next  commtrace check run.json" in ended.err
    assert read_trace(tmp_path / "run.json").run["imported_files"] == 4
    checked = commtrace("check", "run.json")
    first, extent, note = checked.out.split("\n", 2)
    assert (checked.code, first) == (0, "no fault in 84 calls of 4 ranks")
    assert extent == (
        "compared: 21 collectives and 24 point-to-point calls; unknown: reduction, root"
    )
    assert note.startswith("note: Imported from flight recorder, which lacks: roots")


def test_a_rank_that_never_came_makes_the_check_end_with_1(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    dumps = healthy()
    for dump in dumps[:3]:
        dump.call("all_reduce", state="started")
    commtrace("import", write_dumps(tmp_path / "dumps", dumps), "-o", "run.json")
    ended = commtrace("check", "run.json")
    assert ended.code == 1
    assert (
        "Rank 3 never arrived at all_reduce 10 of default_pg (group 0); ranks 0-2 did." in ended.out
    )


def test_a_pickle_that_would_run_something_ends_with_3(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    class Payload:
        def __reduce__(self) -> object:
            return os.system, ("touch ran",)

    (tmp_path / "rank_0").write_bytes(pickle.dumps(Payload(), 2))
    ended = commtrace("import", "rank_0", "-o", "run.json")
    assert ended.code == 3
    assert f"found: a pickle that loads {os.system.__module__}.system" in ended.err
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run.json").exists()


def test_what_is_there_is_overwritten_only_with_force(commtrace: Commtrace, tmp_path: Path) -> None:
    dumps = write_dumps(tmp_path / "dumps", healthy(1))
    (tmp_path / "run.json").write_text("mine")
    assert commtrace("import", dumps, "-o", "run.json").code == 2
    assert (tmp_path / "run.json").read_text() == "mine"
    assert commtrace("import", dumps, "-o", "run.json", "--force").code == 0


def test_files_that_are_none_are_named_with_what_is_in_them(
    commtrace: Commtrace, tmp_path: Path, run_json: Path
) -> None:
    (tmp_path / "notes").write_text("hello")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "cut.json").write_text('{"traceEvents": [{"ph": "X"}')
    (tmp_path / "empty").touch()
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8bxx")
    for name, found in {
        "nowhere": "no such file or folder",
        "notes": "'hello'",
        "other.json": "an object with the keys a",
        "cut.json": "the end of the file",
        "empty": "an empty file",
        "bad.gz": "truncated gzip data",
        str(run_json): "a trace of commtrace",
    }.items():
        ended = commtrace("import", name, "-o", "out.json", columns=None)
        assert ended.code == 3, name
        assert f"error: cannot import {name}" in ended.err
        assert f"found: {found}" in ended.err
        assert not (tmp_path / "out.json").exists()


def test_files_of_several_kinds_or_of_one_rank_are_no_run(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    folder = write_dumps(tmp_path / "dumps", healthy(1))
    (tmp_path / "profile.json").write_text('{"traceEvents": []}')
    mixed = commtrace("import", folder, "profile.json", "-o", "out.json")
    assert (mixed.code, "cannot import files of several formats" in mixed.err) == (3, True)
    (folder / "rank_0_again").write_bytes((folder / "nccl_trace_rank_0").read_bytes())
    twice = commtrace("import", folder, "-o", "out.json", columns=None)
    assert (twice.code, "found: two of rank 0:" in twice.err) == (3, True)


def test_of_several_files_each_must_say_its_rank(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "dumps", [Dump(rank).call("all_reduce") for rank in (0, 1)])
    (folder / "nccl_trace_rank_0").rename(folder / "trace_20261122")
    ended = commtrace("import", folder, "-o", "out.json", columns=None)
    assert ended.code == 3
    assert "no rank, neither in the file nor in its name" in ended.err


def test_info_says_where_it_comes_from_and_what_is_lacking(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    commtrace("import", write_dumps(tmp_path / "dumps", healthy(1)), "-o", "run.json")
    text = commtrace("info", "run.json", columns=None).out
    assert "imported from   flight recorder" in text
    assert "reductions, modules and operators; blocked" in text
    assert "not closed" not in text


def test_logs_are_joined_to_a_recording_and_what_does_not_fit_is_listed(
    commtrace: Commtrace, tmp_path: Path, run_json: Path
) -> None:
    export = Export(read_trace(run_json))
    export.write(tmp_path / "logs", LAYOUTS[0])
    ended = commtrace("import", "logs", "--recording", run_json, "-o", "joined.json", columns=None)
    assert (ended.code, ended.out) == (0, "")
    num = len(export.device_ns)
    assert num > 0
    assert f"note: {num} of {num} operations of NCCL Inspector were joined to calls" in ended.err
    assert f"({num} operations), from its first call on" in ended.err
    assert "next  commtrace report joined.json" in ended.err
    found = read_trace(tmp_path / "joined.json").tables["comm"]["device_ns"]
    assert sorted(each for each in found if each >= 0) == sorted(export.device_ns.values())
    explained = commtrace("explain", "joined.json", "0:3")
    assert "a device ran it for 121 µs" in explained.out
    table = commtrace("table", "joined.json", "by_module", columns=None)
    assert f"{num} of {num} operations of NCCL Inspector were joined" in table.out + table.err
    own = commtrace("import", "logs", "--recording", "joined.json", "-o", "joined.json", "--force")
    assert own.code == 2
    unjoined = commtrace("import", "logs", "-o", "alone.json", columns=None)
    assert f"imported {num} calls of 4 ranks from NCCL Inspector" in unjoined.err


def test_snapshots_show_the_rank_that_is_behind(commtrace: Commtrace, tmp_path: Path) -> None:
    def counts(*numbers: int, second: int) -> str:
        members = [rank(n, AllReduce=num) for n, num in enumerate(numbers)]
        return snapshot(communicator(members), second=second)

    write(tmp_path / "ras", counts(4, 4, 3, second=1), counts(9, 9, 3, second=2))
    ended = commtrace("import", "ras", "-o", "run.json", columns=None)
    assert ended.code == 0
    assert "imported the counts of 1 communicator" in ended.err
    checked = commtrace("check", "run.json", columns=None)
    assert checked.code == 1
    assert "1 fault in the counts of 1 communicator of 3 ranks" in checked.out
    assert "rank 2 launched fewer calls than others: 3 of 9 all_reduce calls." in checked.out
    shown = commtrace("summary", "run.json", columns=None)
    assert "how many each member of a communicator has launched" in shown.out
    refused = commtrace("report", "run.json", columns=None)
    assert (refused.code, "try: `commtrace check`" in refused.err) == (3, True)
    write(tmp_path / "one", counts(4, 4, 4, second=1))
    commtrace("import", "one", "-o", "one.json")
    healthy_job = commtrace("check", "one.json", columns=None)
    assert healthy_job.code == 0
