"""The parting of the ranks of a run that is still recorded, for the alarm of `watch`."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import commtrace.analyze.divergence
from commtrace.analyze.divergence import of_fault
from commtrace_cli.parting import print_parting_of_growing
from tests.commtrace.live.growing import Run

_TEXTS = ("before", "own_source", "instead_source", "event", "branch")
ROWS = [
    {"problem": "missing call", "group": "0", "number": -1, "ranks": ranks, "compared": "0,1"}
    | {"common": "recv", "common_source": f"train.py:{line}", "own": "send", "instead": "recv"}
    | dict.fromkeys(_TEXTS, "")
    | {"event_rank": -1}
    for ranks, line in (("0", 3), ("2", 9))
]


@pytest.mark.parametrize(("blamed", "line"), [((0,), 3), ((2, 3), 9), ((), 3)])
def test_the_parting_of_the_blamed_ranks_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blamed: tuple[int, ...], line: int
) -> None:
    monkeypatch.setattr(commtrace.analyze.divergence, "divergences", lambda _: pd.DataFrame(ROWS))
    printed = Console(file=io.StringIO(), width=200)
    with Run(tmp_path / "RUN.comm") as run:
        run.start_all(4)
        run.flush()
        print_parting_of_growing(printed, run.folder, blamed)
    assert isinstance(printed.file, io.StringIO)
    assert f"train.py:{line}" in printed.file.getvalue()


@pytest.mark.parametrize(("ranks", "line"), [("0,1", 3), ("2,3", 9)])
def test_faults_without_a_number_have_the_partings_of_their_ranks(ranks: str, line: int) -> None:
    fault = {"problem": "missing call", "group": "0", "number": -1, "ranks": ranks}
    first = of_fault(pd.DataFrame(ROWS), fault)[0]
    assert first["common_source"] == f"train.py:{line}"
