"""The programs in README.md run, and its comments are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from dtensor_core import observe
from dtensor_core.testing import fake_world
from tests.commtrace.synthetic import write_synthetic_run

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def program(with_text: str) -> str:
    """The one Python block of the README that has `with_text` in it."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    (found,) = [block for block in blocks if with_text in block]
    return found


def test_the_recording_is_written(tmp_path: Path) -> None:
    names = {"model": torch.nn.Linear(2, 2), "batches": [torch.ones(1, 2)] * 3}
    exec(program("with commtrace.record("), names)
    assert (tmp_path / "run.json").is_file()


def test_the_tables_are_there(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run.json")
    names: dict[str, object] = {}
    exec(program("CATALOG"), names)
    assert len(names["frames"].comm)  # type: ignore[attr-defined]


def test_the_layouts_and_the_reason_are_those_of_the_comments() -> None:
    text = program("distribute_tensor")
    names: dict[str, object] = {}
    sentences: list[str] = []
    with fake_world(4), observe.listening(lambda told: sentences.append(told.sentence)):
        exec(text, names)
    layout, reason = re.findall(r"  # (.+)$", text, re.M)
    assert names["weight"]._spec.text == layout  # type: ignore[attr-defined]
    assert sentences[-1].endswith(reason)
