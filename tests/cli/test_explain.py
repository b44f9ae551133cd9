"""`commtrace explain`: the story of a call, for people and for programs."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from commtrace.event import SourceRow
from commtrace.tracefile import write_trace
from commtrace.views.run import load
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.rows import call, group, op, trace_of


@pytest.fixture
def needed_json(tmp_path: Path) -> Path:
    """A trace in which two ranks gather an argument of a product, and rank 1 is late."""
    shared = {
        "kind": "all_gather", "native_op": "c10d::_allgather_base_", "seq": 0, "until": 2_000_000,
        "dtype": "float32", "input_shapes": "[4,8]", "output_shapes": "[8,8]",
        "payload_bytes": 256, "wire_bytes": 128, "planned_bytes": 256, "step": 0,
        "module": "net", "module_class": "Net", "module_call": 0, "op": "aten.mm.default",
        "op_id": 1, "source_file": "train.py", "source_line": 1, "source_function": "forward",
        "argument": "self", "source_spec": "f32[8,8] tp:S(0)", "target_spec": "f32[8,8] tp:R",
        "candidates": '[["tp: R, S(1) -> S(1)", 1e-4], ["tp: R, R -> R", 2e-4]]',
    }  # fmt: skip
    rows = [
        call(rank=0, id=7, at=0, call_ns=2_000_000, blocked_ns=2_000_000, **shared),
        call(rank=1, id=7, at=1_500_000, call_ns=500_000, blocked_ns=500_000, **shared),
    ]
    ops = [
        op(rank=0, id=0, op="aten.linear.default", at=0),
        op(rank=0, id=1, parent=0, op="aten.mm.default", at=0),
    ]
    sources = [SourceRow("train.py", 1, "y = x @ w\nreturn y")]
    trace = trace_of(rows, ops=ops, groups=[group()], sources=sources, run={"detail": "op"})
    return write_trace(trace, tmp_path / "needed.json")


def test_the_story_goes_from_the_line_to_the_peers(commtrace: Commtrace, needed_json: Path) -> None:
    ended = commtrace("explain", needed_json, "longest")
    assert ended.code == 0
    story, last, findings = re.sub(" +\n", "\n", ended.out).partition("last\n")
    assert findings.startswith(
        "\nreplication_fallback  aten.mm.default in net replicated its argument self"
    )
    assert story + last == (
        "0:7 all_gather on tp, step 0, forward\n"
        "where    train.py:1 in forward\n"
        "         >     1  y = x @ w\n"
        "               2  return y\n"
        "         module net (Net, call 0)\n"
        "why      aten.mm.default needs its argument self in another layout\n"
        "           inside of aten.linear.default\n"
        "           from  f32[8,8] tp:S(0)\n"
        "                 dim 0 sharded over tp\n"
        "           to    f32[8,8] tp:R\n"
        "                 replicated over tp\n"
        "choice   > on tp  R, S(1) -> S(1)  100 µs  cheapest\n"
        "           on tp  R, R -> R  200 µs\n"
        "sent     c10d::_allgather_base_\n"
        "         float32 [4,8] -> [8,8]\n"
        "         256 B payload, 128 B sent by this rank in a ring\n"
        "         group g (2 ranks: 0, 1, gloo), collective 0 of the group\n"
        "time     began 0 ns into the run, took 2 ms\n"
        "         blocked rank 0 for 2 ms\n"
        "           1.5 ms waiting for rank 1\n"
        "           500 µs transfer after the last arrival\n"
        "         on the critical path: if it takes longer, so does the run\n"
        "         128 kB/s algbw, 64 kB/s busbw\n"
        "peers    rank 1 arrived last, 1.5 ms after the first\n"
        "         rank 1 was late: longer work, 1.5 ms beyond the others' median of 0 ns\n"
        "         call  arrived  blocked  waited  transfer\n"
        "         0:7     +0 ns     2 ms  1.5 ms    500 µs  this call\n"
        "         1:7   +1.5 ms   500 µs    0 ns    500 µs  last\n"
    )
    assert ended.err == f"next  commtrace explain {needed_json} 1:7\n"


def test_a_notebook_shows_what_the_terminal_shows(commtrace: Commtrace, needed_json: Path) -> None:
    ended = commtrace("explain", needed_json, "longest", columns=400)
    explained = load(needed_json).explain("longest")
    lines = [line.rstrip() for line in ended.out.rstrip().splitlines()]
    assert repr(explained).splitlines() == lines
    html = re.sub(r"<style.*?</style>|<[^>]+>", " ", explained._repr_html_(), flags=re.DOTALL)
    shown = " ".join(unescape(html).split())
    for part in "  ".join(lines).split("  "):
        assert " ".join(part.split()) in shown


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_no_line_is_wider_than_the_terminal(
    commtrace: Commtrace, needed_json: Path, columns: int
) -> None:
    ended = commtrace("explain", needed_json, "0:7", columns=columns)
    assert max(len(line) for line in ended.out.splitlines()) <= columns


def test_without_a_reason_it_says_so_and_reports_the_rest(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    rows = [call(rank=0, id=0, seq=0, at=0, source_file="a.py", source_line=9)]
    plain = write_trace(trace_of(rows), tmp_path / "plain.json")
    ended = commtrace("explain", plain, "0", columns=140)
    assert ended.code == 0
    assert "why      No operator on distributed tensors needed it" in ended.out
    assert "a.py:9" in ended.out
    assert "1 of 2 arrived; no call of rank 1 is in the trace" in ended.out
    assert "note: The completion time is unknown" in ended.out


def test_of_many_peers_this_one_and_the_latest_are_shown(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    rows = [call(rank=r, id=0, seq=0, at=r, until=99, blocked_ns=9) for r in range(30)]
    trace = trace_of(rows, num_ranks=30, groups=[group(ranks=range(30))])
    many = write_trace(trace, tmp_path / "many.json")
    ended = commtrace("explain", many, "12:0", "--rows", "6")
    shown = re.findall(r"^ +(\d+):0 ", ended.out, re.MULTILINE)
    assert shown == ["0", "1", "12", "27", "28", "29"]
    assert "24 more: --rows 30" in ended.out
    assert len(re.findall(r"^ +\d+:0 ", commtrace("explain", many, "3:0", "--rows", "30").out,
                          re.MULTILINE)) == 30  # fmt: skip


def test_json_is_the_full_story(commtrace: Commtrace, needed_json: Path) -> None:
    document = json.loads(commtrace("explain", needed_json, "0:7", "--json").out)
    story = document["story"]
    assert document["run"]["world_size"] == 2
    assert (story["rank"], story["id"], story["where"]["text"]) == (0, 7, "y = x @ w")
    assert story["why"]["candidates"][0]["is_chosen"] is True
    assert [peer["wait_ns"] for peer in story["peers"]] == [1_500_000, 0]
    assert story["unknown"] == {}


def test_numbers_that_are_not_known_are_null(commtrace: Commtrace, tmp_path: Path) -> None:
    plain = write_trace(trace_of([call(id=0)], num_ranks=1), tmp_path / "plain.json")
    story = json.loads(commtrace("explain", plain, "0", "--json").out)["story"]
    assert story["time"]["busbw_bytes_per_s"] is None


def test_a_call_that_does_not_exist_is_refused(commtrace: Commtrace, needed_json: Path) -> None:
    ended = commtrace("explain", needed_json, "0:8")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: no call '0:8'\n  found: ids of rank 0 are 7 to 7\n"
