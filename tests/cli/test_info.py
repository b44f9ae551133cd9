"""`commtrace info`: the description of a trace, even if incomplete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commtrace.schema import FORMAT_VERSION
from commtrace.tracefile import spool_name, write_trace
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.rows import call, rank_row, trace_of
from tests.commtrace.synthetic import write_synthetic_spools


def test_it_reports_program_ranks_sizes_and_format(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("info", run_json.name)
    assert ended.code == 0
    size = f"{run_json.stat().st_size / 1000:.3g} kB"
    assert re.sub(" +\n", "\n", ended.out) == (
        f"trace      run.json, {size}\n"
        f"format     version {FORMAT_VERSION}, latest supported version {FORMAT_VERSION}\n"
        "program    train.py --steps 3\n"
        "recorded   2023-11-14T22:13:20+00:00, 10.3 ms, detail op\n"
        "with       torch 2.13.0, python 3.11.7\n"
        "ranks      4 of 4\n"
        "hosts      node0: ranks 0-3, on cpu\n"
        "clocks     one clock\n"
        "groups     1, of mesh axes tp, with gloo\n"
        "steps      3, marked by the program\n"
        "calls      120\n"
        "operators  120\n"
    )
    assert ended.err == "next  commtrace summary run.json\n"


def test_what_is_missing_is_reported(commtrace: Commtrace, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=4)
    (folder / spool_name(1)).unlink()
    spool = folder / spool_name(2)
    spool.write_bytes(spool.read_bytes()[:-3])
    assert "3 of 4, no recording of rank 1, not closed by rank 2" in commtrace("info", folder).out
    lossy = trace_of(ranks=[rank_row(0, num_dropped=1200)])
    path = write_trace(lossy, tmp_path / "lossy.json")
    assert "calls      0, and 1,200 dropped" in commtrace("info", path).out


def test_values_that_calls_lack_are_counted(commtrace: Commtrace, tmp_path: Path) -> None:
    calls = [call(id=n, payload_bytes=8, **({"until": 9} if n < 2 else {})) for n in range(3)]
    path = write_trace(trace_of(calls), tmp_path / "part.json")
    ended = commtrace("info", path)
    assert re.sub(" +\n", "\n", ended.out).split("calls ")[1].split("operators")[0] == (
        "     3\n           end known for 2 of 3 calls; blocked time not known for 3 of 3 calls\n"
    )
    printed = json.loads(commtrace("info", path, "--json").out)["info"]
    assert printed["num_known"] == {"payload_bytes": 3, "complete_ns": 2, "blocked_ns": 0}


def test_a_trace_without_events_has_facts_too(commtrace: Commtrace, silent_json: Path) -> None:
    ended = commtrace("info", silent_json)
    assert ended.code == 0
    assert "none marked or detected" in ended.out


def test_json_has_the_facts_as_values(commtrace: Commtrace, run_json: Path) -> None:
    printed = json.loads(commtrace("info", run_json, "--json").out)["info"]
    assert (printed["world_size"], printed["recorded_ranks"]) == (4, [0, 1, 2, 3])
    assert printed["hosts"][0]["host"] == "node0"
    assert printed["num_rows"]["comm"] == 120


def test_settings_of_the_project_are_shown(
    commtrace: Commtrace, run_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.commtrace]\n"
        'detail = "collective"\n'
        'libraries = ["trainer"]\n'
        "thresholds = {straggler_ratio = 7}\n"
        'link = {tp = "450 GB/s", "*" = "400 Gbit/s"}\n'
        'muted = [{rule = "stall", reason = "a checkpoint", module = "m.*"}]\n'
    )
    monkeypatch.chdir(tmp_path)
    ended = commtrace("info", run_json, columns=300)
    assert " ".join(ended.out.split()).endswith(
        "pyproject.toml detail collective libraries trainer threshold straggler_ratio 7, by "
        "default 5 link of tp 450 GB/s link 50 GB/s muted stall, module m.*: a checkpoint"
    )
    printed = json.loads(commtrace("info", run_json, "--json").out)["settings"]
    assert printed["muted"][0]["rule"] == "stall"
    assert printed["path"] == str(tmp_path / "pyproject.toml")
