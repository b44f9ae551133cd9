"""`commtrace whatif`: changes of a run, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from commtrace.analyze.replay.changes import VERBS
from commtrace.tracefile import read_trace, write_trace
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.replaying import NUM_STEPS, barrier_trace
from tests.commtrace.analyze.rows import call, trace_of

REMOVED = "remove where kind=barrier"


@pytest.fixture
def barrier_json(tmp_path: Path) -> Path:
    return write_trace(barrier_trace(), tmp_path / "run.json")


def test_without_a_change_those_that_pay_are_listed_within_the_width(
    commtrace: Commtrace, barrier_json: Path
) -> None:
    ended = commtrace("whatif", barrier_json)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"step 100 ms, of {NUM_STEPS} steady steps"
    assert lines[1].startswith("on the critical path: host work ")
    (first,) = [place for place, line in enumerate(lines) if "  In most steps, 4 calls of" in line]
    said = "saves 10 ms (10%)  In most steps, 4 calls of barrier are followed by a"
    assert lines[first][4:] == said
    assert lines[first + 1 : first + 7] == [
        "    collective of the same group that waits for all ranks as well, at",
        "    train.py:7.",
        "    100 ms -> 90 ms",
        "    how: Remove the barrier, unless ranks exchange files, or measure times,",
        "         behind it.",
        "    replayed: remove where finding=2",
    ]
    best = next(line.split(": ")[1] for line in lines if "replayed: " in line)
    assert ended.err == f"next  commtrace whatif {barrier_json} '{best}'\n"


def test_changes_that_balance_alike_are_one_line_and_limits_are_last(
    commtrace: Commtrace, barrier_json: Path
) -> None:
    lines = commtrace("whatif", barrier_json).out.splitlines()
    texts = [line.strip() for line in lines if "replayed: balance" in line]
    assert texts == [
        "replayed: balance where finding=1",
        "replayed: balance",
        "replayed: balance where rank=1",
    ]
    places = [lines.index(f"    {text}") for text in texts]
    assert places == [*range(places[0], places[0] + 3)]
    assert "limit: saves 30 ms (30%)" in [line for line in lines if line[:2].strip()][-1]
    few = commtrace("whatif", barrier_json, "--rows", "1").out
    assert "\n 2  " not in few
    assert "more: --rows" in few


def test_each_listed_text_is_accepted_word_for_word(
    commtrace: Commtrace, barrier_json: Path
) -> None:
    table = json.loads(commtrace("whatif", barrier_json, "--json").out)["whatif"]
    assert len(table["rows"]) > 4
    for row in table["rows"]:
        ended = commtrace("whatif", barrier_json, row["text"], "--json")
        assert ended.code == 0, row["text"]
        least, most = json.loads(ended.out)["saved_ns"]
        assert least == pytest.approx(row["saved_ns"], abs=1)
        assert most == pytest.approx(row["most_saved_ns"], abs=1)


def test_a_change_is_answered_with_its_effects_without_lines_of_zeros(
    commtrace: Commtrace, barrier_json: Path
) -> None:
    ended = commtrace("whatif", barrier_json, REMOVED)
    assert (ended.code, ended.out.splitlines()) == (
        0,
        [
            "remove where kind=barrier",
            "step 100 ms -> 90 ms  saves 10 ms (10%)",
            "                       before  after   saved",
            "step of ranks 0, 1     100 ms  90 ms   10 ms",
            "blocked in all_reduce   20 ms  30 ms  -10 ms",
            "blocked in barrier      20 ms   0 ns   20 ms",
            "Wait at Barrier         10 ms   0 ns   10 ms",
            "Wait at N x N            0 ns  10 ms  -10 ms",
            "then on the critical path: host work 78%, transfer 22%",
            "8 calls changed; 0 of 62 dependencies are inferred",
        ],
    )


def test_a_change_that_costs_says_so(commtrace: Commtrace, barrier_json: Path) -> None:
    out = commtrace("whatif", barrier_json, "compute *2").out
    assert "step 100 ms -> 170 ms  costs 70 ms (70%)" in out


def test_the_replayed_run_is_written_and_says_that_it_is_replayed(
    commtrace: Commtrace, barrier_json: Path, tmp_path: Path
) -> None:
    replayed = tmp_path / "replayed.json"
    assert commtrace("whatif", barrier_json, REMOVED, "-o", replayed).code == 0
    assert set(read_trace(replayed).tables["comm"]["kind"]) == {"all_reduce"}
    note = f"Replayed, not recorded: with {REMOVED}."
    for arguments in (
        ("summary", replayed),
        ("whatif", replayed),
        ("whatif", replayed, "balance"),
        ("table", replayed, "by_kind"),
        ("timeline", replayed),
        ("check", replayed),
    ):
        assert note in " ".join(commtrace(*arguments).out.split()), arguments
    for arguments in (
        ("findings", replayed),
        ("explain", replayed, "longest"),
        ("dump", replayed, "comm"),
        ("sql", replayed, "SELECT 1"),
    ):
        assert note in commtrace(*arguments).err, arguments
        assert note not in commtrace(arguments[0], barrier_json, *arguments[2:]).err, arguments
    said = " ".join(commtrace("info", replayed, columns=300).out.split())
    assert f"replayed, not recorded: with {REMOVED} program" in said
    assert "not recorded: with" not in commtrace("info", barrier_json, columns=300).out
    assert json.loads(commtrace("summary", replayed, "--json").out)["run"]["replayed"] == REMOVED


def test_a_diff_says_which_run_is_replayed(
    commtrace: Commtrace, barrier_json: Path, tmp_path: Path
) -> None:
    replayed = tmp_path / "replayed.json"
    commtrace("whatif", barrier_json, REMOVED, "-o", replayed)
    ended = commtrace("diff", barrier_json, replayed)
    assert ended.code == 0
    assert f"note: The second run is replayed, not recorded: {REMOVED}." in ended.out
    assert "1 removed" in ended.out
    page = tmp_path / "diff.html"
    assert commtrace("diff", replayed, barrier_json, "-o", page).code == 0
    assert f"The first run is replayed, not recorded: {REMOVED}." in page.read_text()


def test_json_has_exact_numbers_and_no_nan(commtrace: Commtrace, tmp_path: Path) -> None:
    path = write_trace(barrier_trace(2), tmp_path / "two.json")
    answer = json.loads(commtrace("whatif", path, REMOVED, "--json").out)
    assert answer["changes"] == [REMOVED]
    assert (answer["step_ns"], answer["error_ns"], answer["num_steps"]) == (100_000_000, None, 2)
    assert answer["replayed_step_ns"] == [90_000_000] * 2
    assert answer["saved_ns"] == [10_000_000] * 2
    assert (answer["num_calls"], answer["num_unknown"], answer["num_inferred"]) == (4, 0, 0)
    assert answer["effects"][0] == {
        "of": "rank", "name": "rank 0", "before_ns": 1e8, "after_ns": 9e7, "saved_ns": 1e7,
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(commtrace("whatif", path, REMOVED, "--csv").out)))
    assert [row["name"] for row in rows[:2]] == ["rank 0", "rank 1"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["dance where kind=barrier"],
            f"error: no change 'dance'\n  found: the changes {', '.join(VERBS)}\n  try: ",
        ),
        (
            ["payload 5us"],
            "error: cannot use the change 'payload 5us'\n"
            "  found: '5us'\n"
            "  why: payload takes a factor from 0 to a million, such as *0.5 or /2\n"
            "  try: payload *0.5 where dtype=float32\n",
        ),
        (
            ["remove where kind=barier"],
            "error: the change 'remove where kind=barier' is of nothing in this run\n"
            "  found: 'kind=barier' holds for no row: did you mean kind=barrier? "
            "kind is one of all_reduce, barrier\n"
            "  try: commtrace table RUN calls, which lists what conditions can name\n",
        ),
        (
            [REMOVED, "shrink *0.5 where kind=barrier"],
            "error: cannot make the change 'shrink *0.5 where kind=barrier'\n"
            "  found: only calls that a change before it removes\n"
            "  why: a call that is removed has no time that could change\n"
            "  try: one of the two changes\n",
        ),
        (
            ["remove where finding=9"],
            "error: cannot make the change 'remove where finding=9'\n"
            "  found: 2 findings in this run\n"
            "  try: commtrace findings RUN, which lists them\n",
        ),
        (
            ["-o", "replayed.json"],
            "error: cannot write a replayed run\n"
            "  found: no change\n"
            "  try: a change, such as overlap\n",
        ),
    ],
    ids=["no verb", "bad value", "nothing", "contradiction", "no finding", "no change"],
)
def test_a_change_that_cannot_be_made_is_an_error(
    commtrace: Commtrace, barrier_json: Path, changes: Sequence[str], said: str
) -> None:
    ended = commtrace("whatif", barrier_json, *changes)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(said)


def test_a_run_without_times_cannot_be_replayed(commtrace: Commtrace, tmp_path: Path) -> None:
    calls = [call(rank=rank, id=n, seq=n) for rank in range(2) for n in range(3)]
    path = write_trace(trace_of(calls), tmp_path / "untimed.json")
    ended = commtrace("whatif", path, "overlap")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: cannot replay the run\n"
        "  found: 6 calls, none with known times\n"
        "  why: a replay needs the time at which calls were issued, and at which they ended\n"
        "  try: a recording, or a trace with times\n"
    )
    listed = commtrace("whatif", path)
    assert listed.code == 0
    assert listed.out == (
        "note: The run cannot be replayed: the time of issue is unknown for all calls.\n"
    )


def test_a_run_that_nothing_helps_says_what_it_is_bound_by(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    calls = [
        call(rank=rank, id=n, seq=n, at=9 * n, until=9 * n, blocked_ns=0)
        for rank in range(2)
        for n in range(3)
    ]
    path = write_trace(trace_of(calls), tmp_path / "issued.json")
    assert commtrace("whatif", path).out.endswith(
        "run 18 ns, without steps\n"
        "on the critical path: host work 100%\n"
        "\n"
        "No change that was replayed makes a step shorter.\n"
    )


def test_a_part_of_the_run_is_replayed(commtrace: Commtrace, barrier_json: Path) -> None:
    ended = commtrace("whatif", barrier_json, "--steps", "1:2")
    assert ended.out.startswith("step 100 ms, of 2 steady steps\n")
    assert ended.err.endswith(" --steps 1:2\n")
    window = commtrace("whatif", barrier_json, REMOVED, "--window", "100ms:300ms")
    assert (window.code, "4 calls changed" in window.out) == (0, True)
