"""`commtrace compare`: the first wrong tensor, as text, JSON and CSV, and the exit code."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from commtrace.tracefile import write_trace
from dtensor_core import Shard
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.values.rows import trace_of_one, trace_of_shards


def some() -> list[tuple[dict[str, Any], torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    names = [f"layer.{number}.weight" for number in range(3)]
    return [
        ({"role": "gradient", "name": name, "module": name[:-7]}, tensor)
        for name, tensor in zip(names, torch.randn(3, 8, 4, generator=generator), strict=True)
    ]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A run of a single rank."""
    return write_trace(trace_of_one(some()), tmp_path / "one.json")


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """The same on four ranks."""
    return write_trace(trace_of_shards(some(), [Shard(0)], {"tp": 4}), tmp_path / "four.json")


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """The same with a gradient four times as large."""
    values = some()
    values[1] = (values[1][0], values[1][1] * 4)
    return write_trace(trace_of_shards(values, [Shard(0)], {"tp": 4}), tmp_path / "doubled.json")


def test_runs_that_agree(commtrace: Commtrace, one: Path, four: Path) -> None:
    ended = commtrace("compare", one, four, columns=120)
    assert ended.code == 0
    assert ended.out == (
        "the runs agree in 3 tensors\n"
        "what rounding explains is an estimate; --reference with a run in float64 measures it\n"
    )


def test_the_first_wrong_tensor_is_printed(commtrace: Commtrace, one: Path, doubled: Path) -> None:
    ended = commtrace("compare", one, doubled, columns=300)
    assert ended.code == 1
    title, place, left, right, distance, before, between, *rest = ended.out.splitlines()
    assert title == (
        f"gradient layer.1.weight is wrong in {doubled}: it is 4 times what it should be: "
        "4 is the size of mesh axis tp, as if reduced over it once too often"
    )
    assert place == "  step 0, forward, shape [8,4]"
    assert left.startswith("  first run   on one rank, float32, norm ")
    assert right.startswith("  second run  tp:S(0), float32, norm ")
    assert distance.startswith("  distance ")
    assert before == "  the last tensor that agrees is gradient layer.0.weight"
    assert between == "  no communication between them"
    assert "Tensors that differ: 1 of 3" in rest


@pytest.mark.parametrize("columns", [80, 140])
def test_the_table_fits_the_terminal(
    commtrace: Commtrace, one: Path, doubled: Path, columns: int
) -> None:
    ended = commtrace("compare", one, doubled, columns=columns)
    table = ended.out[ended.out.index("Tensors that differ") :]
    assert max(map(len, table.splitlines())) <= columns


def test_json_has_the_fault_and_what_was_compared(
    commtrace: Commtrace, one: Path, doubled: Path
) -> None:
    ended = commtrace("compare", one, doubled, "--json")
    assert ended.code == 1
    document = json.loads(ended.out)
    assert document["compared"]["num_paired"] == 3
    assert document["fault"]["right"]["name"] == "layer.1.weight"
    assert document["fault"]["relation"]["kind"] == "factor"
    assert [row["name"] for row in document["wrong"]] == ["layer.1.weight"]


def test_csv_has_a_row_for_each_pair(commtrace: Commtrace, one: Path, doubled: Path) -> None:
    ended = commtrace("compare", one, doubled, "--csv")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert [row["is_wrong"] for row in rows] == ["False", "True", "False"]


def test_a_page_is_written_beside_the_text(
    commtrace: Commtrace, one: Path, doubled: Path, tmp_path: Path
) -> None:
    page = tmp_path / "values.html"
    ended = commtrace("compare", one, doubled, "-o", page)
    assert ended.code == 1
    assert ended.out.startswith("gradient layer.1.weight is wrong in")
    assert f"wrote {page}" in ended.err
    assert "Gradient layer.1.weight is wrong in doubled.json" in page.read_text("utf-8")


def test_a_page_is_overwritten_only_if_forced(
    commtrace: Commtrace, one: Path, four: Path, tmp_path: Path
) -> None:
    page = tmp_path / "values.html"
    page.write_text("mine")
    ended = commtrace("compare", one, four, "-o", page)
    assert ended.code == 2
    assert "existing files are only overwritten with --force" in ended.err
    assert page.read_text() == "mine"
    ended = commtrace("compare", one, four, "-o", page, "--force", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["fault"] is None
    assert "The runs agree in 3 tensors" in page.read_text("utf-8")
    ended = commtrace("compare", one, four, "-o", one, "--force")
    assert "no command overwrites its own input" in ended.err


def test_a_reference_decides_on_the_tolerance(
    commtrace: Commtrace, one: Path, doubled: Path, tmp_path: Path
) -> None:
    exact = [(columns, tensor.double()) for columns, tensor in some()]
    reference = write_trace(trace_of_one(exact), tmp_path / "exact.json")
    ended = commtrace("compare", one, doubled, "--reference", reference)
    assert ended.code == 1
    assert "estimate" not in ended.out


def test_a_run_without_values_is_an_error(commtrace: Commtrace, one: Path, tmp_path: Path) -> None:
    bare = write_trace(trace_of_one([]), tmp_path / "bare.json")
    ended = commtrace("compare", one, bare)
    assert ended.code == 2
    assert "found: no values" in ended.err
    assert "commtrace run --values" in ended.err
