"""`commtrace summary`: the tables for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.report.answers import Answers
from commtrace.report.cards import consistency_summary
from commtrace.report.changes import help_of
from commtrace.report.tiles import answer_tiles
from commtrace.selection import WHOLE_RUN
from commtrace.tracefile import (
    SpoolWriter,
    StringColumn,
    Trace,
    read_trace,
    spool_name,
    write_trace,
)
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.replaying import barrier_trace
from tests.commtrace.analyze.rows import call, trace_of
from tests.commtrace.synthetic import TENSOR_BYTES, synthetic_facts, write_synthetic_run


def first_calls(trace: Trace, num: int) -> Trace:
    """Keep only the first calls of a trace."""
    first_rows = {
        name: StringColumn(values.codes[:num], values.strings)
        if isinstance(values, StringColumn)
        else values[:num]
        for name, values in trace.tables["comm"].items()
    }
    return replace(trace, tables={**trace.tables, "comm": first_rows})


def lines_of(text: str, title: str) -> list[list[str]]:
    """Split the lines below a title, up to the next empty line, at runs of spaces."""
    lines = text.split(f"{title}")[1].split("\n")[1:]
    end = next(i for i, line in enumerate(lines) if not line.strip())
    return [line.replace(" kB", "kB").replace(" ms", "ms").split() for line in lines[:end]]


def test_the_answer_comes_first_then_the_size_and_the_tables(
    commtrace: Commtrace, run_json: Path
) -> None:
    ended = commtrace("summary", run_json, columns=200)
    assert ended.code == 0
    answers = Answers(load(run_json))
    tiles = answer_tiles(answers, consistency_summary(answers), help_of(answers, WHOLE_RUN).tile)
    lines = ended.out.splitlines()
    assert lines[0] == "train.py --steps 3"
    for line, tile in zip(lines[1:], tiles[:2], strict=False):
        assert re.split("  +", line, maxsplit=1) == [
            tile.value, f"{tile.title.lower()}, {tile.note}"
        ]  # fmt: skip
    size = lines.index("4 ranks, 3 steps, 10.3 ms, 30 communication calls per rank (120 in all)")
    assert any(line.startswith("yes") and "ranks consistent" in line for line in lines[3:size])
    assert lines[size + 1] == "Numbers are per rank: the mean over ranks."
    places = [ended.out.index(f"\n\nBy {name}") for name in ("kind", "phase", "module")]
    assert places == sorted(places)


def test_each_change_that_pays_has_a_line(commtrace: Commtrace, tmp_path: Path) -> None:
    path = write_trace(barrier_trace(), tmp_path / "barriers.json")
    ended = commtrace("summary", path, columns=300)
    changes = [*csv.DictReader(io.StringIO(commtrace("whatif", path, "--csv").out))]
    lines = [line for line in ended.out.splitlines() if line.startswith(("saves", "at most"))]
    assert len(lines) == 3
    assert re.split("  +", lines[0])[1] == changes[0]["change"]
    assert all(any(row["change"] in line for row in changes) for line in lines)
    assert ended.err == f"next  commtrace whatif {path}\n"


def test_a_fault_is_said_and_the_check_is_next(commtrace: Commtrace, tmp_path: Path) -> None:
    shared = {"seq": 0, "blocked_ns": 1}
    calls = [call(rank=0, at=0, **shared), call(rank=1, at=5, kind="barrier", **shared)]
    path = write_trace(trace_of(calls), tmp_path / "fault.json")
    ended = commtrace("summary", path)
    assert re.search(r"^1 fault +ranks consistent: ", ended.out, re.MULTILINE)
    assert ended.err == f"next  commtrace check {path}\n"


def test_tables_that_repeat_another_are_left_out(commtrace: Commtrace, tmp_path: Path) -> None:
    shared = {"blocked_ns": 10, "source_file": "train.py", "source_line": 7}
    calls = [
        call(id=n, seq=n, at=20 * n, until=20 * n + 10, phase="other", op="op", **shared)
        for n in range(4)
    ]
    path = write_trace(trace_of(calls, num_ranks=1), tmp_path / "plain.json")
    titles = re.findall(r"^By .*", commtrace("summary", path).out, re.MULTILINE)
    # No call has a module, so that its line is what is known of its place.
    assert titles == ["By kind", "By source line"]
    several = [each._replace(op=f"op{each.id % 2}", module="model") for each in calls]
    path = write_trace(trace_of(several, num_ranks=1), tmp_path / "told.json")
    titles = re.findall(r"^By .*", commtrace("summary", path).out, re.MULTILINE)
    assert titles == ["By kind", "By module", "By operator"]
    assert commtrace("summary", path, "--by", "phase").out.count("By phase") == 1


def test_numbers_are_those_of_the_analysis_with_units(commtrace: Commtrace, run_json: Path) -> None:
    # Per rank: 3 steps x 2 layers x 3 all-reduces, each sending 2 * 3/4 of 512 bytes.
    ended = commtrace("summary", run_json, "--by", "kind")
    heading, first, *_ = lines_of(ended.out, "By kind")
    assert heading[:6] == ["kind", "per", "step", "calls", "payload", "sent"]
    assert first[:5] == ["all_reduce", "6", "18", "9.22kB", "13.8kB"]
    assert TENSOR_BYTES * 18 == 9216


def test_a_range_of_steps_has_the_numbers_of_its_calls(
    commtrace: Commtrace, run_json: Path
) -> None:
    ended = commtrace("summary", run_json, "--steps", "1:2")
    assert "4 ranks, 2 steps, " in ended.out
    assert "20 communication calls per rank (80 in all)" in ended.out
    ended = commtrace("summary", run_json, "--steps", "7")
    assert ended.code == 2
    assert ended.err == "error: no step from 7 to 7\n  found: steps 0 to 2\n  try: other steps\n"


def test_modules_are_a_tree(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("summary", run_json, "--by", "module")
    names = [line.partition("  " * 8)[0].rstrip()[:20].rstrip() for line in ended.out.splitlines()]
    assert [name for name in names if name.strip()][5:11] == [
        "(whole run)",
        "layers",
        "  0",
        "    attention",
        "      wo",
        "    feed_forward",
    ]


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_truncated(
    commtrace: Commtrace, run_json: Path, columns: int
) -> None:
    ended = commtrace("summary", run_json, "--rows", "100", columns=columns)
    tables = ended.out.partition("\n\n")[2]
    assert max(len(line) for line in tables.splitlines()) <= columns
    assert "…" not in tables
    assert "of the steps" in tables


def test_a_wide_terminal_shows_more_columns(commtrace: Commtrace, run_json: Path) -> None:
    narrow = commtrace("summary", run_json, "--by", "op", columns=80).out
    assert "(payload, busbw): in a wider terminal, or with --csv --by" in narrow
    assert "busbw" not in narrow.partition("omitted")[0]
    assert "busbw" in commtrace("summary", run_json, "--by", "op", columns=140).out


def test_piped_output_is_plain_and_complete(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("summary", run_json, columns=None)
    assert "\x1b" not in ended.out + ended.err
    assert "…" not in ended.out
    assert ended.out.count("busbw") == ended.out.count("\n\nBy ") > 2


def test_long_tables_are_truncated_with_a_note(commtrace: Commtrace, tmp_path: Path) -> None:
    trace = write_synthetic_run(tmp_path / "deep.json", num_layers=20, num_steps=1, world_size=1)
    ended = commtrace("summary", trace, "--by", "module")
    shown = lines_of(ended.out, "By module")[1:]
    # The run, `layers` and each layer fit into 30 rows; one level more does not.
    assert len(shown[:-1]) == 2 + 20
    assert shown[-1] == ["100", "more", "rows:", "--rows", "122"]
    assert "more rows" not in commtrace("summary", trace, "--by", "module", "--rows", "122").out


def test_unknowns_of_the_trace_are_reported(commtrace: Commtrace, tmp_path: Path) -> None:
    alone = write_synthetic_run(tmp_path / "alone.json", world_size=1)
    assert "note: The run had one rank" in commtrace("summary", alone).out


def test_json_holds_every_table_with_exact_numbers_and_units(
    commtrace: Commtrace, run_json: Path
) -> None:
    ended = commtrace("summary", run_json, "--json")
    document = json.loads(ended.out)
    assert list(document) == [
        "run",
        "by_kind",
        "by_phase",
        "by_module",
        "by_op",
        "by_source",
        "exposed_share",
    ]
    assert document["run"]["world_size"] == 4
    first = document["by_kind"]["rows"][0]
    assert (first["kind"], first["payload_bytes"]) == ("all_reduce", 9216.0)
    assert document["by_kind"]["columns"]["wire_bytes"]["unit"] == "bytes"


def test_csv_is_the_analysis_itself(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("summary", run_json, "--by", "phase", "--csv")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    table = CATALOG["by_phase"].function(load(run_json))
    assert list(rows[0]) == list(table.columns)
    assert [float(row["wire_bytes"]) for row in rows] == table["wire_bytes"].tolist()


def test_several_tables_as_csv_are_refused(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("summary", run_json, "--csv")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: cannot print several tables as CSV\n"
        "  why: their columns differ\n"
        "  try: one of them: --csv --by module, or all of them: --json\n"
    )


def test_the_next_command_is_named_on_stderr(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("summary", run_json, "--by", "kind")
    assert ended.err == f"next  commtrace report {run_json}\n"


def test_a_trace_without_events_gets_a_sentence(commtrace: Commtrace, silent_json: Path) -> None:
    ended = commtrace("summary", silent_json)
    assert (ended.code, ended.err) == (0, f"next  commtrace info {silent_json}\n")
    assert " ".join(ended.out.split()) == (
        "train.py --steps 3 No communication was recorded: the program issued no collective and "
        "no point-to-point call while recording was on."
    )


@pytest.mark.parametrize(
    "command",
    [
        *(("summary",), ("check",), ("findings",), ("timeline",), ("flame",)),
        *(("table", "by_module"), ("table", "wait_states"), ("table", "calls")),
    ],
    ids=" ".join,
)
def test_every_command_says_in_one_sentence_that_there_are_no_calls(
    commtrace: Commtrace, silent_json: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    name, *rest = command
    with_operators = tmp_path / "ops.json"
    trace = read_trace(write_synthetic_run(tmp_path / "full.json"))
    write_trace(first_calls(trace, 0), with_operators)
    for path, following in ((silent_json, "info"), (with_operators, "dump")):
        ended = commtrace(name, path, *rest)
        assert ended.code == 0
        assert ended.out.count("No communication was recorded") == 1
        assert len(ended.out.splitlines()) == 3
        assert ended.err.startswith(f"next  commtrace {following} {path}")


def test_an_interrupted_run_is_not_reported_as_silent(commtrace: Commtrace, tmp_path: Path) -> None:
    spools = tmp_path / "cut.spools"
    spools.mkdir()
    with (spools / spool_name(0)).open("wb") as stream:
        SpoolWriter(stream, synthetic_facts(0, 1))
    ended = commtrace("summary", spools)
    assert (ended.code, ended.out) == (3, "")
    assert "or ended before its calls were written" in ended.err


def test_calls_that_ranks_make_unequally_are_reported_in_all(
    commtrace: Commtrace, run_json: Path
) -> None:
    trace = read_trace(run_json)
    write_trace(first_calls(trace, 31), run_json)
    assert ", 31 communication calls in all, 0 to 30 per rank" in commtrace("summary", run_json).out


def test_shares_are_of_the_run_where_no_steps_are_marked(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    trace = write_trace(
        trace_of([call(id=0, until=40, blocked_ns=40)], num_ranks=1), tmp_path / "a"
    )
    headings = commtrace("summary", trace, "--by", "kind", columns=140).out
    assert "of the run" in headings
    assert "of the steps" not in headings


@pytest.mark.parametrize("by", ["kind", "module"])
def test_few_calls_of_many_ranks_are_counted_in_all_in_the_tables(
    commtrace: Commtrace, tmp_path: Path, by: str
) -> None:
    few = [call(id=n, seq=n, at=9 * n, module="m") for n in range(3)]
    each = [call(rank=rank, at=99, kind="barrier", id=9, module="n") for rank in range(64)]
    path = write_trace(trace_of([*few, *each], num_ranks=64), tmp_path / "few.json")
    ended = commtrace("summary", path, "--by", by)
    named = {"kind": ("all_reduce", "barrier"), "module": ("m", "n")}[by]
    assert re.search(rf"^ *{named[0]} +3 in all\b", ended.out, re.MULTILINE)
    assert re.search(rf"^ *{named[1]} +1\b", ended.out, re.MULTILINE)
    exact = commtrace("summary", path, "--by", "kind", "--csv").out
    counts = {row["kind"]: row["num_calls"] for row in csv.DictReader(io.StringIO(exact))}
    assert counts == {"all_reduce": str(3 / 64), "barrier": "1.0"}
