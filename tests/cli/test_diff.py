"""`commtrace diff`: changes between two runs, and the exit code."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from commtrace.tracefile import write_trace
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.rows import call, trace_of
from tests.commtrace.synthetic import write_synthetic_run


@pytest.fixture
def longer_json(tmp_path: Path) -> Path:
    """The same run with an additional layer."""
    return write_synthetic_run(tmp_path / "longer.json", num_layers=3)


def test_equal_runs_have_no_difference(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("diff", run_json, run_json, "--fail-on-increase", "calls")
    assert (ended.code, ended.out) == (0, "no difference in 10 places that communicate\n")


@pytest.mark.parametrize("columns", [80, 140])
def test_what_was_added_is_listed_within_the_terminal(
    commtrace: Commtrace, run_json: Path, longer_json: Path, columns: int
) -> None:
    ended = commtrace("diff", run_json, longer_json, columns=columns)
    assert ended.code == 0
    assert ended.out.startswith("5 added, 10 the same\n")
    assert re.search(r"^added +layers\.2\.\S+ +all_reduce +\+1\b", ended.out, re.MULTILINE)
    assert "layers.2.attention.wo" in ended.out
    assert max(len(line) for line in ended.out.splitlines()) <= columns


def test_what_changed_in_all_comes_before_the_places(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    ended = commtrace("diff", run_json, longer_json, columns=160)
    first, step, total, title = ended.out.split("\n")[:4]
    assert first == "5 added, 10 the same"
    assert step.startswith("A step takes ")
    assert re.fullmatch(
        r"in a step: 10 -> 15 calls \(\+50%\), 6.14 kB -> 9.22 kB sent \(\+50%\), "
        r"\S+ .s -> \S+ .s blocked \(\+\d+%\)",
        total,
    )
    assert title == "Difference"


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("calls", "calls grew per step: 10 -> 15 (+5)\n"),
        ("bytes", "wire_bytes grew per step: 6.14 kB -> 9.22 kB (+3.07 kB)\n"),
    ],
)
def test_an_increase_ends_with_code_1(
    commtrace: Commtrace, run_json: Path, longer_json: Path, metric: str, message: str
) -> None:
    ended = commtrace("diff", run_json, longer_json, "--fail-on-increase", metric)
    assert ended.code == 1
    assert ended.err.endswith(message)
    assert commtrace("diff", longer_json, run_json, "--fail-on-increase", metric).code == 0


def test_time_is_a_metric_and_a_tolerance_lets_it_grow(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    options = ("--fail-on-increase", "time")
    assert commtrace("diff", run_json, longer_json, *options).code == 1
    assert commtrace("diff", run_json, longer_json, *options, "--tolerance", "2").code == 0


@pytest.fixture
def wider_json(tmp_path: Path) -> Path:
    """The same run of twice as many ranks."""
    return write_synthetic_run(tmp_path / "wider.json", world_size=8)


def test_a_page_is_written_and_named(
    commtrace: Commtrace, run_json: Path, longer_json: Path, tmp_path: Path
) -> None:
    page = tmp_path / "diff.html"
    ended = commtrace("diff", run_json, longer_json, "-o", page)
    assert (ended.code, ended.out) == (0, "")
    assert re.search(rf"^wrote {re.escape(str(page))} \(.*\)$", ended.err, re.MULTILINE)
    assert f"next  python -m webbrowser {page}\n" in ended.err
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert all(name in text for name in ("run.json", "longer.json"))
    again = commtrace("diff", run_json, longer_json, "-o", page)
    assert (again.code, page.read_text()) == (2, text)
    assert commtrace("diff", longer_json, run_json, "-o", page, "--force").code == 0
    assert page.read_text() != text


def test_a_page_has_all_runs_and_leaves_the_exit_code_to_what_grew(
    commtrace: Commtrace, run_json: Path, longer_json: Path, wider_json: Path, tmp_path: Path
) -> None:
    page = tmp_path / "diff.html"
    runs = (run_json, wider_json, longer_json)
    ended = commtrace("diff", *runs, "-o", page, "--fail-on-increase", "calls")
    assert ended.code == 1
    assert ended.err.endswith("calls grew per step in longer.json: 10 -> 15 (+5)\n")
    assert all(path.name in page.read_text() for path in runs)


@pytest.mark.parametrize("columns", [80, 140])
def test_three_runs_are_each_compared_with_the_first(
    commtrace: Commtrace, run_json: Path, longer_json: Path, wider_json: Path, columns: int
) -> None:
    ended = commtrace("diff", run_json, longer_json, wider_json, columns=columns)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "note: The runs have 4, 4 and 8 ranks" in ended.out
    longer = lines.index("longer.json, compared with the baseline")
    assert lines[longer + 1] == "5 added, 10 the same"
    assert lines[longer + 2].startswith("A step takes ")
    assert lines[longer + 3].startswith("in a step: 10 -> 15 calls (+50%)")
    wider = lines.index("wider.json, compared with the baseline")
    assert any(each.startswith("in a step: 10 -> 10 calls, 6.14 kB -> ") for each in lines[wider:])
    by_module, by_kind = ended.out.index("What changed, by module"), ended.out.index("by kind")
    assert wider < by_module < by_kind
    assert re.search(r"^ *layers\.2 .*\+", ended.out, re.MULTILINE)
    assert re.search(r"^ *all_reduce .*\+", ended.out, re.MULTILINE)
    assert "longer.json" in ended.out[by_module:].splitlines()[1]
    few = commtrace("diff", run_json, longer_json, wider_json, "--rows", "1").out
    assert re.search(r"^\d+ more: --rows \d+ *$", few, re.MULTILINE)


def test_json_and_csv_of_three_runs_name_the_run_of_each_row(
    commtrace: Commtrace, run_json: Path, longer_json: Path, wider_json: Path
) -> None:
    runs = (run_json, longer_json, wider_json)
    rows = list(csv.DictReader(io.StringIO(commtrace("diff", *runs, "--csv").out)))
    assert next(iter(rows[0])) == "run"
    assert [row["run"] for row in rows] == ["longer.json"] * 15 + ["wider.json"] * 10
    added = {row["module"] for row in rows if row["change"] == "added"}
    assert {name[:9] for name in added} == {"layers.2."}
    document = json.loads(commtrace("diff", *runs, "--json").out)
    same = document["diff"]["rows"]
    assert [(row["run"], row["module"]) for row in same] == [
        (row["run"], row["module"]) for row in rows
    ]
    assert [(run["name"], run["num_ranks"], run["num_steps"]) for run in document["runs"]] == [
        *(("run.json", 4, 3), ("longer.json", 4, 3), ("wider.json", 8, 3)),
    ]


def test_the_run_in_which_something_grew_is_named(
    commtrace: Commtrace, run_json: Path, longer_json: Path, wider_json: Path
) -> None:
    guarded = ("--fail-on-increase", "bytes", "--fail-on-increase", "calls")
    ended = commtrace("diff", run_json, wider_json, longer_json, *guarded)
    assert ended.code == 1
    grown = [line for line in ended.err.splitlines() if " grew " in line]
    assert [re.sub(r": .*", "", line) for line in grown] == [
        "wire_bytes grew per step in wider.json",
        "wire_bytes grew per step in longer.json",
        "calls grew per step in longer.json",
    ]
    assert commtrace("diff", longer_json, run_json, run_json, *guarded).code == 0


def test_an_increase_in_something_else_is_refused(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("diff", run_json, run_json, "--fail-on-increase", "mood")
    assert ended.code == 2
    assert "Traceback" not in ended.err


def test_json_and_csv_hold_every_place(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    document = json.loads(commtrace("diff", run_json, longer_json, "--json").out)
    assert len(document["diff"]["rows"]) == 15
    ended = commtrace("diff", run_json, longer_json, "--csv", "--fail-on-increase", "calls")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert (ended.code, rows[0]["change"]) == (1, "added")


def untimed(path: Path, *known: bool, **columns: int) -> Path:
    """A trace of calls in separate modules; some know their blocked time."""
    calls = [
        call(id=n, seq=n, module=f"m{n}", **({"blocked_ns": 5} | columns if each else {}))
        for n, each in enumerate(known)
    ]
    return write_trace(trace_of(calls, num_ranks=1), path)


def test_a_time_that_only_one_run_knows_is_no_growth(commtrace: Commtrace, tmp_path: Path) -> None:
    base = untimed(tmp_path / "a.json", True, False, False)
    same, more = (
        untimed(tmp_path / f"{ns}.json", True, True, True, blocked_ns=ns) for ns in (5, 9)
    )
    ended = commtrace("diff", base, same, "--fail-on-increase", "time", columns=None)
    assert ended.code == 0
    assert "no difference in 3 places that communicate; the change of bytes sent is not known" in (
        ended.out
    )
    assert "note: the change of blocked_ns is known for 1 of 3 places; the others are not" in (
        ended.err
    )
    ended = commtrace("diff", base, more, "--fail-on-increase", "time", columns=None)
    assert ended.code == 1
    assert "blocked_ns grew outside of steps or over the run: 5 ns -> 9 ns" in ended.err
    none = untimed(tmp_path / "none.json", False, True, True)
    ended = commtrace("diff", base, none, "--fail-on-increase", "time", columns=None)
    assert ended.code == 2
    assert "no place where the baseline and none.json know an equal part" in ended.err


def test_the_total_of_a_measure_is_over_the_places_that_both_runs_know(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    base = untimed(tmp_path / "a.json", True, False, wire_bytes=10)
    more = untimed(tmp_path / "b.json", True, True, wire_bytes=20, blocked_ns=7)
    ended = commtrace("diff", base, more, columns=None)
    assert "10 B -> 20 B sent (+100%) (known for 1 of 2 places)" in ended.out
    assert "5 ns -> 7 ns blocked (+40%) (known for 1 of 2 places)" in ended.out


def test_changes_are_a_table_of_markdown(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    ended = commtrace(
        "diff", run_json, longer_json, "--markdown", "--rows", "2", "--fail-on-increase", "calls"
    )
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert lines[0] == "### Communication of longer.json, compared with run.json"
    assert lines[2].startswith("**calls grew per step: 10 → 15")
    assert any(line.startswith("- in a step: 10 → 15 calls") for line in lines)
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == ("| change | module | operator | kind | calls | bytes sent | blocked |")
    assert len(table) == 2 + 2
    assert all(line.count(" | ") == 6 for line in table)
    assert re.fullmatch(r"\| added \| `layers\.2\S*` \| \S+ \| `\w+` \| (0|–) → .*\|", table[2])
    assert "3 more places changed." in lines


def test_runs_without_a_difference_say_so_in_markdown(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("diff", run_json, run_json, "--markdown")
    assert (ended.code, ended.out.splitlines()[-1]) == (
        0, "No difference in 10 places that communicate."
    )  # fmt: skip
    ended = commtrace("diff", run_json, run_json, "--markdown", "--json")
    assert ended.err.startswith("error: cannot print two formats at once\n")


def test_names_have_no_meaning_in_markdown(commtrace: Commtrace, tmp_path: Path) -> None:
    hostile = "a|b`<script>**\n# x"
    runs = []
    for number, module in enumerate(("plain", hostile)):
        calls = [call(id=0, at=0, until=9, blocked_ns=9, module=module, wire_bytes=8)]
        name = f"{number}_*x*.json"
        runs.append(write_trace(trace_of(calls, num_ranks=1), tmp_path / name))
    lines = commtrace("diff", *runs, "--markdown").out.splitlines()
    assert lines[0] == ("### Communication of 1\\_\\*x\\*.json, compared with 0\\_\\*x\\*.json")
    (row,) = [line for line in lines if "script" in line]
    assert "`a\\|b'<script>**\\n# x`" in row


def test_the_workflow_to_copy_runs_these_commands(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    workflow = Path(__file__).parents[2] / "examples" / "ci" / "commtrace.yml"
    steps = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]["communication"]["steps"]
    run_json.rename("base.json")
    longer_json.rename("branch.json")
    commands = [
        shlex.split(step["run"].partition(" >> ")[0])[1:]
        for step in steps
        if step.get("run", "").startswith("commtrace ")
    ]
    assert [command[0] for command in commands] == ["report", "diff"]
    assert [commtrace(*command).code for command in commands] == [0, 1]
    (artifact,) = [step["with"]["path"] for step in steps if "artifact" in step.get("uses", "")]
    assert all(Path(name).exists() for name in artifact.split())
