"""`commtrace check`: its output, and an exit code that reports faults."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
import torch

from commtrace.tracefile import write_trace
from commtrace.views.run import load
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.consistency.runs import changed, training
from tests.commtrace.analyze.rows import call, group, rank_row, trace_of
from tests.commtrace.analyze.values.rows import row


@pytest.fixture
def broken_json(tmp_path: Path) -> Path:
    """A trace of 4 ranks in which rank 3 reduces another dtype."""
    program = training(num_ranks=4, tp=4)
    rows = changed(program.rows, 3, "all_reduce", {"dtype": "bfloat16"})
    return write_trace(trace_of(rows, groups=program.groups, num_ranks=4), tmp_path / "broken.json")


def test_a_healthy_run_ends_with_code_0(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("check", run_json)
    assert (ended.code, ended.out) == (
        *(0, "no fault in 120 calls of 4 ranks\ncompared: 30 collectives\n"),
    )


def test_a_fault_ends_with_code_1_and_is_explained(commtrace: Commtrace, broken_json: Path) -> None:
    ended = commtrace("check", broken_json)
    assert ended.code == 1
    assert re.sub(" +\n", "\n", ended.out) == (
        "Rank 3 differs in the element type of its call at train.py:7 (rank 3: bfloat16;\n"
        "others: float32)\n"
        "1 fault in 76 calls of 4 ranks\n"
        "compared: 11 collectives and 12 point-to-point calls\n"
        "not compared: 4 calls after the first disagreement in the group\n"
        "\n"
        "dtype  blamed: 3\n"
        "  The members differ in the element type of all_reduce 0 of tp (group tp0): rank\n"
        "  3: bfloat16; the other 3: float32.\n"
        "  at train.py:7\n"
        "\n"
        "  parted  Rank 3 and rank 1 made the same calls from the same lines; only the\n"
        "          element type of this call differs.\n"
    )


def test_a_notebook_shows_what_the_terminal_shows(commtrace: Commtrace, broken_json: Path) -> None:
    ended = commtrace("check", broken_json, columns=400)
    shown = repr(load(broken_json).check())
    assert [" ".join(line.split()) for line in shown.splitlines() if line.strip()] == [
        " ".join(line.split()) for line in ended.out.splitlines() if line.strip()
    ]


def test_what_was_lost_is_reported_and_is_no_fault(commtrace: Commtrace, tmp_path: Path) -> None:
    program = training(num_ranks=4, tp=4)
    rows = [row for row in program.rows if row.rank or row.id < 5]
    ranks = [rank_row(rank, num_dropped=9 if rank == 0 else 0) for rank in range(4)]
    trace = write_trace(
        trace_of(rows, groups=program.groups, ranks=ranks), tmp_path / "dropped.json"
    )
    ended = commtrace("check", trace)
    assert ended.code == 0
    assert ended.out.splitlines()[:3] == [
        "no fault among the 47 of 63 calls that could be compared",
        "compared: 12 collectives and 8 point-to-point calls",
        "not compared: 3 calls to or from a rank whose calls are unknown or may be lost",
    ]
    assert "it exceeded the limits of the recording" in ended.out


def test_what_the_trace_lacks_is_reported_beside_no_fault(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    program = training(num_ranks=4, tp=4)
    ranks = [rank_row(rank, complete=rank != 2) for rank in range(4)]
    trace = trace_of(program.rows, groups=program.groups, ranks=ranks)
    ended = commtrace("check", write_trace(trace, tmp_path / "cut.json"))
    assert (ended.code, ended.out.splitlines()[:3]) == (
        0,
        [
            "no fault among the 52 of 76 calls that could be compared",
            "compared: 12 collectives and 4 point-to-point calls",
            "not compared: 8 calls to or from a rank whose calls are unknown or may be lost",
        ],
    )
    assert "note: Rank 2 did not close the recording" in ended.out


def test_json_and_csv_hold_the_problems_and_end_with_the_same_code(
    commtrace: Commtrace, broken_json: Path
) -> None:
    ended = commtrace("check", broken_json, "--json")
    problem = json.loads(ended.out)["consistency"]["rows"][0]
    assert (ended.code, problem["problem"], problem["ranks"]) == (1, "dtype", "3")
    ended = commtrace("check", broken_json, "--csv")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert (ended.code, rows[0]["expected"], rows[0]["found"]) == (1, "float32", "rank 3: bfloat16")


def test_a_file_that_is_no_trace_ends_with_code_3(commtrace: Commtrace, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}")
    ended = commtrace("check", tmp_path / "no.json")
    assert (ended.code, ended.out) == (3, "")


@pytest.fixture
def lonely_json(tmp_path: Path) -> Path:
    """A trace of 300 ranks; only the first left a recording, of a single call."""
    facts = {"world_size": 300, "missing_ranks": list(range(1, 300))}
    alone = trace_of([call()], ranks=[rank_row(0)], groups=[group(ranks=range(300))], run=facts)
    return write_trace(alone, tmp_path / "lonely.json")


@pytest.fixture
def mixed_json(tmp_path: Path) -> Path:
    """A trace of 300 ranks; the last hundred reduce another type."""
    types = {rank: "float32" if rank < 200 else "bfloat16" for rank in range(300)}
    rows = [call(rank=rank, id=0, seq=0, dtype=dtype) for rank, dtype in types.items()]
    return write_trace(trace_of(rows, num_ranks=300), tmp_path / "mixed.json")


def test_many_blamed_ranks_are_contracted_for_people_and_listed_for_programs(
    commtrace: Commtrace, mixed_json: Path
) -> None:
    raw = ",".join(map(str, range(200, 300)))
    ended = commtrace("check", mixed_json)
    assert "\ndtype  blamed: 200-299 (100 ranks)\n" in ended.out
    assert "299 (100 ranks)" in commtrace("table", mixed_json, "consistency", columns=200).out
    for command in (["check", mixed_json], ["table", mixed_json, "consistency"]):
        (row,) = csv.DictReader(io.StringIO(commtrace(*command, "--csv").out))
        (same,) = json.loads(commtrace(*command, "--json").out)["consistency"]["rows"]
        assert (row["ranks"], same["ranks"]) == (raw, raw)


def test_one_rank_and_one_call_are_named_in_the_singular(
    commtrace: Commtrace, lonely_json: Path
) -> None:
    ended = commtrace("check", lonely_json)
    lines = " ".join(ended.out.split())
    assert ended.out.splitlines()[:2] == [
        "not compared: the calls of 1 of 300 ranks only",
        "not compared: 1 call without a number in the group",
    ]
    assert "over the 1 recorded rank, and waits" in lines
    assert max(map(len, ended.out.splitlines())) <= 80
    assert not re.search(r"\b\d+,\d+,\d+", ended.out), "a list of ranks is not contracted"


@pytest.fixture
def unreduced_json(tmp_path: Path) -> Path:
    """A trace of two ranks that reduce the gradient of only one of two weights."""
    torch.manual_seed(0)
    own = [torch.randn(4, 4) for _ in range(2)]
    rows = []
    for rank in range(2):
        tensors = [
            (role, name, tensor)
            for role, of in (
                ("parameter", {"w": torch.ones(4, 4), "v": torch.ones(4, 4)}),
                ("local_gradient", {"w": own[rank], "v": own[rank]}),
                ("gradient", {"w": own[0] + own[1], "v": own[rank]}),
            )
            for name, tensor in of.items()
        ]
        rows += [
            row(rank, number, {"role": role, "name": name}, tensor, tensor)
            for number, (role, name, tensor) in enumerate(tensors)
        ]
    return write_trace(trace_of(fingerprints=rows, num_ranks=2), tmp_path / "unreduced.json")


def test_a_gradient_that_is_not_reduced_is_a_fault(
    commtrace: Commtrace, unreduced_json: Path
) -> None:
    ended = commtrace("check", unreduced_json, "--gradients")
    assert ended.code == 1
    text = " ".join(ended.out.split())
    assert "wrong reduction blamed: 0, 1 gradient of v, in step 0:" in text
    assert "the contributions of rank 1 are missing, although ranks 0, 1 hold replicas" in text
    assert (
        "right 1 gradient, step 0: the sum over tp (ranks 0, 1) of 2 contributions, factor 1"
        in text
    )


def test_the_audit_of_gradients_is_data_for_programs(
    commtrace: Commtrace, unreduced_json: Path
) -> None:
    ended = commtrace("check", unreduced_json, "--gradients", "--csv")
    assert ended.code == 1
    states = {each["name"]: each["state"] for each in csv.DictReader(io.StringIO(ended.out))}
    assert states == {"v": "missing", "w": "right"}
    ended = commtrace("check", unreduced_json, "--gradients", "--json")
    found = json.loads(ended.out)["gradients"]["rows"]
    assert {each["name"]: each["num_reduced"] for each in found} == {"v": 1, "w": 2}


def test_an_audit_without_gradients_says_so(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("check", run_json, "--gradients")
    assert ended.code == 4
    assert "No reduced gradient was observed in this run." in ended.out
