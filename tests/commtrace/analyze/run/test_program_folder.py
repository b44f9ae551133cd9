"""Sentences name files relative to the folder of the program."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.comparisons.growth import by_line
from commtrace.analyze.consistency import consistency
from commtrace.analyze.divergence import divergences
from commtrace.analyze.findings import findings
from commtrace.analyze.run.program_folder import program_folder, relative
from commtrace.analyze.story import explain, find_call
from commtrace.event import GroupRow
from commtrace.figures import timeline
from commtrace.settings import Muted
from commtrace.views.explained import Explained
from tests.commtrace.analyze.rows import call, run_of, step

HOME = "/home/me/project"


def run(command: str, *files: str) -> Frames:
    calls = [
        call(
            id=n, seq=n, step=n // 20, at=100 * n, until=100 * n + 40, blocked_ns=40,
            payload_bytes=8, wire_bytes=8, source_file=files[0], source_line=9,
        )
        for n in range(40)
    ]  # fmt: skip
    sources = pd.DataFrame({"file": files, "line": 1, "text": "import torch"})
    steps = [step(0, n, 2000 * n, 2000 * (n + 1)) for n in range(2)]
    frames = run_of(calls, num_ranks=1, steps=steps)
    return replace(frames, sources=sources, run={**frames.run, "command": command})


@pytest.mark.parametrize(
    ("command", "files", "folder"),
    [
        (f"{HOME}/train.py --steps 3", (f"{HOME}/train.py",), f"{HOME}/"),
        ("train.py --steps 3", (f"{HOME}/train.py", "/opt/other.py"), f"{HOME}/"),
        ("../project/train.py", (f"{HOME}/train.py",), f"{HOME}/"),
        ("./train.py", (f"{HOME}/train.py", "/opt/train.py"), ""),
        ("train.py", ("train.py",), ""),
        ("-m package", (f"{HOME}/train.py",), ""),
        ("/train.py", ("/train.py",), ""),
    ],
)
def test_the_folder_is_that_of_the_script(
    command: str, files: tuple[str, ...], folder: str
) -> None:
    frames = run(command, *files)
    assert program_folder(frames) == folder
    assert relative(frames, f"at {files[0]}:9") == f"at {files[0].removeprefix(folder)}:9"


def test_a_longer_path_that_contains_it_keeps_its_name() -> None:
    frames = run(f"{HOME}/train.py", f"{HOME}/train.py")
    for other in (f"/backup{HOME}/train.py:9", f"~{HOME}/train.py:9"):
        assert relative(frames, f"at {other}") == f"at {other}"
    assert relative(frames, f"before all_reduce ({HOME}/train.py:9)") == (
        "before all_reduce (train.py:9)"
    )


def test_findings_name_lines_relative_to_it() -> None:
    (row,) = findings(run("train.py", f"{HOME}/train.py")).to_dict("records")
    assert row["source"] == "train.py:9"
    assert HOME not in row["title"]


def test_faults_and_where_ranks_parted_are_named_relative_to_it() -> None:
    calls = [
        call(
            rank=rank, seq=n, id=n, at=100 * n, reduce_op="sum" if rank and n else "max",
            source_file=f"{HOME}/train.py", source_line=9 + n, group="g",
        )
        for rank in range(2) for n in range(2)
    ]  # fmt: skip
    frames = run_of(calls, num_ranks=2, groups=[GroupRow(name="g", ranks="0,1", size=2)])
    frames = replace(frames, run={**frames.run, "command": f"{HOME}/train.py"})
    faults = consistency(frames)
    assert faults["source"].tolist() == ["train.py:10"]
    parted = divergences(frames)
    assert parted["common_source"].tolist() == ["train.py:10"]
    assert HOME not in faults.to_csv() + parted.to_csv()


def test_growth_by_line_names_the_lines_of_both_runs_relative_to_their_folders() -> None:
    before = run(f"{HOME}/train.py", f"{HOME}/train.py")
    assert [row.name for row in by_line([before, before])] == ["train.py:9"]


def test_a_call_in_a_notebook_and_in_the_timeline_is_named_relative_to_it() -> None:
    frames = run(f"{HOME}/train.py", f"{HOME}/train.py")
    explained = Explained(explain(frames, find_call(frames, "0:0")), program_folder(frames))
    for text in (repr(explained), explained._repr_html_(), timeline(frames).to_json() or ""):
        assert "train.py:9" in text
        assert HOME not in text


def test_a_finding_is_muted_by_the_full_name_of_its_file_too() -> None:
    frames = run("train.py", f"{HOME}/train.py")
    for source in (f"{HOME}/train.py:9", "train.py:9"):
        muted = Muted("small_messages", "on purpose", source=source)
        assert findings(frames.with_settings(replace(frames.settings, muted=(muted,)))).empty
