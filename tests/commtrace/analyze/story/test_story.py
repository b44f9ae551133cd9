"""The story of a call: the call itself, its reason, its members, and what remains unknown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.story import Story, explain, find_call
from commtrace.analyze.story.why import candidates_in, note_in, words_of
from commtrace.errors import UsageError
from tests.commtrace.analyze.rows import call, group, op, rank_row, run_of

NEEDED = {
    "op": "aten.mm.default",
    "argument": "self",
    "source_spec": "f32[8,16] dp:S(0) tp:S(1)",
    "target_spec": "f32[8,16] dp:R tp:R",
    "reason": "aten.mm.default needs self ...",
}


def story(frames: Frames, name: str) -> Story:
    return explain(frames, find_call(frames, name))


def met(**columns: Any) -> Frames:
    """An all-reduce of two ranks: rank 1 arrives 40 ns late, and both complete at 100 ns."""
    both = {"payload_bytes": 1000, "wire_bytes": 1000, "seq": 0, "until": 100, "dtype": "f32"}
    rows = [
        call(rank=0, id=3, at=0, call_ns=10, blocked_ns=90, **(both | columns)),
        call(rank=1, id=5, at=40, call_ns=60, blocked_ns=60, **(both | columns)),
    ]
    return run_of(rows, run={"detail": "op"})


def test_the_slack_of_a_call_is_how_much_longer_it_could_take_unnoticed() -> None:
    """Rank 0 sends for 20 ns, works until 60 ns, and then waits for rank 1 until 150 ns."""
    rows = [
        call(rank=0, id=0, kind="all_gather", group="alone", at=0, until=20, blocked_ns=20),
        call(rank=0, id=1, at=60, until=200, blocked_ns=140, seq=0),
        call(rank=1, id=0, at=150, until=200, blocked_ns=50, seq=0),
    ]
    groups = [group(), group("alone", [0])]
    frames = run_of(rows, groups=groups)
    slacks = {name: story(frames, name).time.slack_ns for name in ("0:0", "0:1", "1:0")}
    assert slacks == {"0:0": 90, "0:1": 0, "1:0": 0}


# --- which call ---


def test_a_call_is_named_by_rank_and_id_by_id_and_by_what_it_is_first_in() -> None:
    frames = run_of(
        [
            call(rank=1, id=0, payload_bytes=5, blocked_ns=1),
            call(rank=1, id=1, payload_bytes=5, blocked_ns=7),
            call(rank=0, id=0, payload_bytes=2, blocked_ns=7),
            call(rank=0, id=2, payload_bytes=-1, blocked_ns=-1),
        ]
    )

    def found(text: str) -> tuple[int, int]:
        row = find_call(frames, text)
        return row["rank"], row["id"]

    assert found("1:0") == (1, 0)
    assert found("0") == (0, 0)
    assert found("1") == (1, 1)
    assert found("longest") == (0, 0)
    assert found("biggest") == (1, 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0:9", "no call '0:9'\n  found: ids of rank 0 are 0 to 0"),
        ("7:0", "no call '7:0'\n  found: calls of ranks 0 to 1"),
        ("9", "no call '9'\n  found: ids 0 to 4"),
        ("longest", "no longest call\n  found: no call with a known blocked_ns"),
        (
            "rank 0",
            "cannot explain 'rank 0'\n"
            "  why: a call is identified by rank and id, 0:92, by its id, "
            "or by longest or biggest\n"
            "  try: `commtrace table TRACE calls` lists rank and id of each call",
        ),
    ],
)
def test_a_call_that_is_not_there_is_reported_with_what_is(text: str, reason: str) -> None:
    frames = run_of([call(rank=0, id=0), call(rank=1, id=4)])
    with pytest.raises(UsageError) as refused:
        find_call(frames, text)
    assert str(refused.value) == reason


# --- peers and times ---


def test_the_time_is_split_at_the_arrival_of_the_last_peer() -> None:
    early, late = story(met(), "0:3"), story(met(), "1:5")
    assert (early.time.lasted_ns, early.time.blocked_ns, early.time.hidden_ns) == (100, 90, 10)
    # Blocked in the call from 0 to 10 and in the wait from 20 to 100; rank 1 arrives at 40.
    assert (early.time.wait_ns, early.time.transfer_ns, early.time.waited_for) == (30, 60, 1)
    assert (late.time.wait_ns, late.time.transfer_ns, late.time.waited_for) == (0, 60, 1)
    assert early.time.algbw_bytes_per_s == pytest.approx(1000 / 100e-9)
    assert early.time.busbw_bytes_per_s == early.time.algbw_bytes_per_s  # 2 (n-1) / n for n = 2
    assert [(peer.rank, peer.id, peer.after_ns, peer.is_this) for peer in early.peers] == [
        (0, 3, 0, True),
        (1, 5, 40, False),
    ]
    assert [peer.is_last for peer in early.peers] == [False, True]
    assert "wait" not in early.unknown


def test_collectives_of_other_groups_and_numbers_are_no_peers() -> None:
    rows = [call(rank=r, id=i, seq=i, at=10 * i + r, group=g) for r in (0, 1) for i in (0, 1)
            for g in ("g", "h")]  # fmt: skip
    explained = story(run_of(rows, groups=[group("g"), group("h")]), "0:1")
    assert [(peer.rank, peer.id) for peer in explained.peers] == [(0, 1), (1, 1)]
    assert explained.number == 1


def test_a_transfer_has_two_ends() -> None:
    rows = [
        call(rank=0, id=0, kind="send", peer=2, at=0, until=9, blocked_ns=9),
        call(rank=2, id=4, kind="recv", peer=0, at=5, until=9, blocked_ns=4),
        call(rank=1, id=0, kind="recv", peer=0, at=1),
    ]
    explained = story(run_of(rows, num_ranks=3), "0:0")
    assert [(peer.rank, peer.id) for peer in explained.peers] == [(0, 0), (2, 4)]
    assert (explained.time.wait_ns, explained.time.waited_for, explained.missing_ranks) == (
        5,
        2,
        (),
    )
    alone = story(run_of(rows, num_ranks=3), "1:0")
    assert alone.missing_ranks == (0,)
    assert "the call of rank 0 is not in the trace" in alone.unknown["wait"]


def test_who_never_arrived_and_who_made_another_call_is_reported() -> None:
    rows = [
        call(rank=0, id=0, seq=0, at=0, dtype="float32"),
        call(rank=1, id=0, seq=0, at=1, dtype="bfloat16", kind="all_gather"),
    ]
    explained = story(run_of(rows, num_ranks=3), "0:0")
    assert explained.missing_ranks == (2,)
    assert explained.peers[1].differs == "kind all_gather, dtype bfloat16"
    assert explained.time.wait_ns == -1
    assert explained.unknown["wait"].endswith("the call of rank 2 is not in the trace.")


# --- why ---


def test_the_operators_around_a_call_come_from_the_outermost_in() -> None:
    ops = [
        op(id=0, op="aten.linear.default", at=0),
        op(id=1, parent=0, op="aten.mm.default", at=1),
        op(id=2, op="aten.add.Tensor", at=9),
    ]
    frames = run_of([call(id=0, op="aten.mm.default", op_id=1)], ops=ops)
    operators = story(frames, "0").why.operators
    assert [each.op for each in operators] == ["aten.linear.default", "aten.mm.default"]


def test_the_steps_of_a_redistribution_are_its_neighbours_one_a_group() -> None:
    groups = [group("a", (0,), mesh_axis="dp"), group("b", (0,), mesh_axis="tp")]
    rows = [
        call(id=0, group="b", payload_bytes=1, **NEEDED),
        call(id=1, group="a", payload_bytes=2, **NEEDED),
        call(id=2, group="b", payload_bytes=3, **NEEDED),  # the same call again
        call(id=3, group="a", payload_bytes=4, **NEEDED),
        call(id=4, group="a", **(NEEDED | {"argument": "mat2"})),
        call(id=6, group="b", **NEEDED),  # and again
    ]
    frames = run_of(rows, groups=groups, num_ranks=1)

    def steps(name: str) -> list[tuple[int, str]]:
        return [(step.id, step.axis) for step in story(frames, name).why.steps]

    assert steps("0") == steps("1") == [(0, "tp"), (1, "dp")]
    assert steps("3") == [(2, "tp"), (3, "dp")]
    assert steps("4") == [(4, "dp")]
    assert steps("6") == [(6, "tp")]


def test_the_first_candidate_of_each_axis_was_chosen() -> None:
    text = '[["dp: R -> R", 0.0], ["tp: R, S(1) -> S(1)", 1e-4], ["tp: R, R -> R", 2e-4]]'
    found = [(each.axis, each.layouts, each.is_chosen) for each in candidates_in(text)]
    assert found == [
        ("dp", "R -> R", True),
        ("tp", "R, S(1) -> S(1)", True),
        ("tp", "R, R -> R", False),
    ]
    assert candidates_in("") == ()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("f32[8,16] tp:_S(1, 2)", "each of 2 blocks of dim 1 sharded over tp"),
        ("f32[8,16] dp:S(0) tp:R", "dim 0 sharded over dp, replicated over tp"),
        ("f32[8] tp:P(sum)", "partial sum over tp"),
        ("f32[8] tp:P(max)", "partial max over tp"),
        ("bf16[8] tp:SS(0)", "SS(0) over tp"),
        ("on one rank", ""),
        ("", ""),
    ],
)
def test_a_layout_is_put_in_words(spec: str, words: str) -> None:
    assert words_of(spec) == words


@pytest.mark.parametrize(
    ("sentence", "note"),
    [
        ("aten.mm.default needs self A -> B: all_gather on tp (a cut that is needed)",
         "a cut that is needed"),
        ("aten.mm.default needs self f32[8] tp:P(sum) -> f32[8] tp:S(0): all_gather on tp", ""),
        ("redistribute f32[8] tp:P(sum) -> f32[8] tp:S(0)", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_what_a_reason_adds_stands_at_its_end(sentence: str, note: str) -> None:
    assert note_in(sentence) == note


@pytest.mark.parametrize(
    ("columns", "part", "reason"),
    [
        ({}, "operator", "No operator on distributed tensors needed it"),
        ({"carries": "gradients"}, "operator", "a library sends gradients"),
        ({"op": "aten.mm.default"}, "layouts", "The source and target layouts are unknown"),
        (NEEDED, "candidates", "only dtensor_core announces them"),
        (NEEDED | {"op": "redistribute"}, "candidates", "requested this layout explicitly"),
        (NEEDED | {"op": "redistribute.backward"}, "candidates", "a gradient is redistributed"),
        ({}, "source", "contains no line of the program"),
        ({"until": -1700000000000000001}, "end", "The completion time is unknown"),
    ],
)
def test_what_is_not_known_is_reported_with_the_reason(
    columns: dict[str, Any], part: str, reason: str
) -> None:
    assert reason in story(met(**columns), "0:3").unknown[part]


def test_without_recorded_operators_that_is_the_reason_to_know_none() -> None:
    frames = run_of([call(id=0)], run={"detail": "collective"})
    assert 'detail="collective"' in story(frames, "0").unknown["operator"]


def test_a_call_of_which_all_is_known_leaves_nothing_open() -> None:
    known = NEEDED | {"candidates": '[["tp: R -> R", 1e-4]]', "source_file": "a.py"}
    assert story(met(source_line=1, **known), "0:3").unknown == {}


# --- where ---


def test_the_line_is_read_beside_the_trace_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\n\n    loss.backward()\n")
    frames = met(source_file="train.py", source_line=3)
    monkeypatch.chdir(tmp_path)
    assert story(frames, "0:3").where.text == "loss.backward()"
    assert story(met(source_file="gone.py", source_line=3), "0:3").where.text == ""


def test_the_lines_are_those_that_were_recorded_whatever_the_file_says_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("new\n" * 9)
    monkeypatch.chdir(tmp_path)
    frames = met(source_file="train.py", source_line=3)
    now = story(frames, "0:3")
    assert (now.where.text, now.where.are_recorded) == ("new", False)
    assert "from the current file" in now.unknown["lines"]
    sources = pd.DataFrame({"file": ["train.py"], "line": [2], "text": ["  a\n  b\n  c"]})
    then = story(replace(frames, sources=sources), "0:3")
    assert (then.where.text, then.where.are_recorded) == ("b", True)
    assert [(each.number, each.text) for each in then.where.lines] == [
        (2, "  a"), (3, "  b"), (4, "  c"),
    ]  # fmt: skip
    assert "lines" not in then.unknown


@pytest.mark.parametrize("source", ["/dev/zero", "fifo"])
def test_a_source_that_is_no_regular_file_is_not_read(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    assert story(met(source_file=source, source_line=3), "0:3").where.lines == ()


def test_calls_alike_are_those_of_the_rank_from_the_same_place() -> None:
    rows = [call(rank=r, id=i, module="m", phase=p) for r in (0, 1)
            for i, p in enumerate(("forward", "forward", "backward"))]  # fmt: skip
    assert story(run_of(rows), "0:0").num_alike == 2


def test_findings_that_count_the_call_in_come_with_their_advice() -> None:
    rows = [call(id=i, seq=i, payload_bytes=8, at=10 * i, until=10 * i + 5) for i in range(20)]
    rows.append(call(id=20, seq=20, module="m"))
    frames = run_of(rows, num_ranks=1, ranks=[rank_row(0)])
    assert "outside_modules" in [each.rule for each in story(frames, "0").findings]
    assert "outside_modules" not in [each.rule for each in story(frames, "20").findings]
