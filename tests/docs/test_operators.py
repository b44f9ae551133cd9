"""docs/operators.md agrees with the table of operators."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dtensor_core import DTensor, Partial, Shard, distribute_tensor, rules
from dtensor_core.errors import DTensorError
from dtensor_core.operators import table
from dtensor_core.testing import kept_mesh, run_threads

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate" / "operators.py"))


def test_the_document_is_up_to_date() -> None:
    assert (DOCS / "operators.md").read_text() == GENERATOR["render"](), "run `make docs`"


def test_a_changed_row_changes_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| `mm` | `m k, k n -> m n` | sum, avg: 0 * 1 |" in GENERATOR["render"]()
    monkeypatch.setitem(table.TABLE, "mm", replace(table.TABLE["mm"], algebra="increasing"))
    assert "| `mm` | `m k, k n -> m n` | max, min: 0 * 1 |" in GENERATOR["render"]()


def test_every_row_is_listed_once() -> None:
    listed = [name for _, _, lines in rules.families() for line in lines for name in line.operators]
    assert sorted(listed) == sorted(table.TABLE)


@pytest.mark.usefixtures("preloaded")
def test_the_command_prints_operator_rule_and_what_passes() -> None:
    command = [sys.executable, "-m", "dtensor_core.rules"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [line.split("  ") for line in printed.splitlines()]
    (row,) = [[cell.strip() for cell in row if cell] for row in rows if row[1:2] == ["addmm"]]
    assert row == ["addmm", "m n + m k, k n -> m n", "sum, avg: 0 + 1 * 2"]
    assert printed.splitlines()[0].split("  ")[0] == "operators"
    marked = subprocess.run(
        [*command, "--markdown"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert marked.strip() == rules.markdown().strip()


@pytest.mark.parametrize(("call", "error", "why"), GENERATOR["RAISING"])
def test_what_is_said_to_raise_raises_on_every_rank(call: str, error: str, why: str) -> None:
    def body() -> str:
        mesh = kept_mesh((2,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        p = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])
        try:
            eval(call, {"torch": torch, "x": x, "p": p})
        except DTensorError as raised:
            return type(raised).__name__
        return "nothing"

    assert run_threads(body, 2) == [error] * 2, why
