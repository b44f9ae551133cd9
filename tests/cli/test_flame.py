"""`commtrace flame`: each option, in the terminal and as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commtrace_cli.flame import VALUE_OF
from commtrace_cli.options.selection import Width
from tests.cli.conftest import Commtrace


def test_it_draws_the_flame_graph_in_the_terminal(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("flame", run_json, columns=100)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[:2] == [
        "train.py --steps 3",
        "Bytes sent: per rank, as the mean over ranks",
    ]
    total_line = next(line for line in lines if line.startswith("all communication"))
    assert total_line.split()[2:5] == ["18.4", "kB", "100%"]  # 6 x (3 x 768 + 2 x 384) bytes
    assert all(len(line) <= 100 for line in lines)
    assert ended.err.endswith(f"next  commtrace flame {run_json} --by wire_bytes -o flame.html\n")


@pytest.mark.parametrize(
    ("by", "amount"),
    [("wire_bytes", ["18.4", "kB"]), ("time", None), ("exposed", None), ("count", ["30"])],
)
def test_widths_are_by_what_is_asked_for(
    commtrace: Commtrace, run_json: Path, by: str, amount: list[str] | None
) -> None:
    ended = commtrace("flame", run_json, "--by", by)
    total_line = next(
        line for line in ended.out.splitlines() if line.startswith("all comm")
    ).split()
    if amount:
        assert total_line[2 : 2 + len(amount)] == amount
    else:
        assert total_line[3] in ("µs", "ms")


def test_every_width_is_a_value_of_the_figure() -> None:
    assert list(VALUE_OF) == list(Width)


def test_a_phase_alone(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("flame", run_json, "--phase", "backward", "--by", "count")
    assert "Calls in backward" in ended.out
    assert "forward" not in ended.out.split("feed_forward")[0]
    refused = commtrace("flame", run_json, "--phase", "sideways")
    assert (refused.code, refused.err) == (
        2,
        "error: no flame graph of the phase 'sideways'\n"
        "  found: communication in forward, backward\n"
        "  try: one of them\n",
    )


def test_some_steps_alone(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("flame", run_json, "--by", "count", "--steps", "1:2")
    assert "all communication" in ended.out
    total_line = next(
        line for line in ended.out.splitlines() if line.startswith("all comm")
    ).split()
    assert total_line[2] == "20"
    refused = commtrace("flame", run_json, "--steps", "7")
    assert refused.code == 2
    assert "steps 0 to 2" in refused.err


def test_smaller_rows_are_left_out_and_counted(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("flame", run_json, "--rows", "3")
    bars = [line for line in ended.out.splitlines() if "█" in line]
    assert len(bars) == 3
    assert "smaller rows: --rows" in ended.out


def test_it_writes_a_page_or_plotly_s_json(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("flame", run_json, "-o", "flame.html")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("wrote flame.html (")
    assert Path("flame.html").read_text().startswith("<!doctype html>")
    assert commtrace("flame", run_json, "-o", "flame.json").code == 0
    assert json.loads(Path("flame.json").read_text())["data"][0]["type"] == "icicle"
    assert commtrace("flame", run_json, "-o", "flame.html").code == 2
    assert commtrace("flame", run_json, "-o", "flame.html", "--force").code == 0


@pytest.mark.parametrize("command", ["flame", "timeline"])
def test_a_format_that_cannot_be_written_is_refused(
    commtrace: Commtrace, run_json: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = commtrace(command, run_json, "-o", "picture.doc")
    assert (refused.code, refused.err) == (
        2,
        "error: cannot draw picture.doc\n"
        "  found: the suffix .doc\n"
        "  try: one of .html, .json, .png, .svg, .pdf\n",
    )
    monkeypatch.setattr("commtrace.report.picture.find_spec", lambda name: None)
    refused = commtrace(command, run_json, "-o", "picture.svg")
    assert (refused.code, refused.err) == (
        2,
        "error: cannot draw picture.svg\n"
        "  found: no package kaleido\n"
        "  why: plotly needs it for .png, .svg, .pdf\n"
        "  try: `pip install kaleido`, or .html, whose buttons save .svg and .png\n",
    )
