"""Calls of the backward pass that are left out since a module did not run in the forward pass."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.divergence import divergences
from commtrace.analyze.divergence.program_text import ProgramText
from commtrace.analyze.divergence.unlike_modules import UnlikeModule, chain_to
from tests.commtrace.analyze.consistency.runs import Program
from tests.commtrace.analyze.rows import START_NS, op, rank_row, run_of

MODEL = """
    class Detector(nn.Module):
        def __init__(self):
            self.trunk, self.head = Linear(), Linear()
        def forward(self, images):
            features = self.trunk(images)
            if features.any():
                self.loss(features)
            return features
        def loss(self, features):
            return self.head(features)
"""
PASSES = 3


def hung(
    folder: Path, lacking: int | None, ops: list[Any] | None = None, num_dropped: int = 0
) -> Frames:
    """A run of three ranks; one runs no `head` in its last pass and then goes on."""
    file = folder / "train.py"
    file.write_text(dedent(MODEL).lstrip())
    program, made = Program(3, 3), []
    at = {"source_file": str(file), "source_line": 40, "source_function": "main"}
    for number in range(PASSES + 1):
        for rank in program.ranks:
            is_lacking = number == PASSES and rank == lacking
            begin = 10 * program._ids[rank] * 10 + rank
            for place, (name, kind) in enumerate(
                [("trunk", "Linear"), ("", "Detector"), ("head", "Linear")]
            ):
                if name != "head" or not is_lacking:
                    made.append(
                        op(rank=rank, id=len(made), op="aten.mm", at=begin - 9 + place,
                           phase="forward", module=name, module_class=kind, module_call=number)
                    )  # fmt: skip
            last = {"complete_ns": -1, "call_ns": -1} if number == PASSES else {}
            if not is_lacking:
                program.one(rank, "all_reduce", "world", phase="backward", **at, **last)
                made.append(op(rank=rank, id=len(made), op="aten.mm", at=begin + 1,
                               phase="backward", module="trunk", module_call=number))  # fmt: skip
            made.append(op(rank=rank, id=len(made), op="aten.add", at=begin + 2, phase="other",
                           module="", module_class="", module_call=-1))  # fmt: skip
            program.one(rank, "all_gather", "world", **{**at, "source_line": 50}, **last)
    known = {"complete": False, "alive_ns": START_NS, "num_ops_dropped": num_dropped}
    ranks = [rank_row(rank, **known) for rank in program.ranks]
    rows = made if ops is None else ops
    return run_of(program.rows, groups=program.groups, ranks=ranks, ops=rows)


def row_of(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The divergence, with the source as it is: the run began long ago."""
    monkeypatch.setattr("commtrace.analyze.run.source_lines._is_older", lambda *_: True)
    (row, *_) = divergences(frames).to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_the_condition_of_the_forward_pass_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = hung(tmp_path, 1)
    row = row_of(frames, monkeypatch)
    assert (row["ranks"], row["branch"]) == ("1", f"`if features.any():` ({tmp_path}/train.py:6)")
    assert row["event"] == "ran no module head in its forward pass, but rank 2 did"


def test_two_classes_of_one_name_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.py").write_text("class Detector:\n    pass\n")
    row = row_of(hung(tmp_path, 1), monkeypatch)
    assert (row["branch"], "module head" in row["event"]) == ("", True)


def test_a_module_behind_the_place_of_the_other_rank_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, made = Program(2, 2), []
    at = {"source_file": str(tmp_path / "train.py"), "source_function": "main"}
    for rank in program.ranks:
        for place, name in enumerate(("trunk", "head")[: 2 - rank]):
            made.append(
                op(rank=rank, id=place, op="aten.mm", at=100 + place, phase="forward",
                   module=name, module_class="Linear", module_call=1)
            )  # fmt: skip
    ended = {"complete_ns": -1, "call_ns": -1, "at": 200}
    program.one(0, "all_reduce", "world", phase="backward", source_line=40, **at, **ended)
    program.one(1, "all_gather", "world", phase="forward", module="trunk", source_line=9,
                **at, **ended)  # fmt: skip
    ranks = [rank_row(rank, complete=False, alive_ns=START_NS) for rank in program.ranks]
    row = row_of(run_of(program.rows, groups=program.groups, ranks=ranks, ops=made), monkeypatch)
    assert row["event"] == ""


@pytest.mark.parametrize("known", [{"ops": []}, {"num_dropped": 2}])
def test_without_all_operators_nothing_is_said_of_modules(
    known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_of(hung(tmp_path, 1, **known), monkeypatch)
    assert (row["ranks"], "module" in row["event"]) == ("1", False)


@pytest.mark.parametrize(
    ("loop", "line"),
    [
        ("for block in self.blocks:\n            if coin(): continue\n            x = block(x)", 5),
        ("for n, block in enumerate(self.blocks):\n            x = x + block(x)", 4),
        ("for n in range(2):\n            x = self.blocks[n](x)", 4),
        ("for block in self.blocks: pass", 3),
    ],
)
def test_a_module_of_a_list_is_called_where_the_variable_of_the_loop_is(
    loop: str, line: int, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"class Net(Module):\n    def forward(self, x):\n        {loop}\n")
    unlike = UnlikeModule(0, 1, "net.blocks.1", "net", "Net", None)
    text = ProgramText({str(file): dict(enumerate(file.read_text().splitlines(), 1))})
    (frame,) = chain_to(pd.DataFrame({"source_file": [str(file)]}), text, unlike)
    assert (frame.line, frame.function) == (line, "forward")
