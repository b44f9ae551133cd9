"""Loggers that take files get the page, by the function of their library; others are left alone.

Runs of Weights & Biases and MLflow are stand-ins with the functions that their libraries document.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from commtrace.integrations.artifacts import hand_over

PAGE = Path("out/report.html")


class Calls:
    """Notes each call as the name of the function and its arguments."""

    def __init__(self, name: str, notes: list[tuple[Any, ...]]) -> None:
        self._name, self._notes = name, notes

    def __getattr__(self, name: str) -> Any:
        def noted(*args: Any) -> None:
            self._notes.append((f"{self._name}.{name}", *args))

        return noted


class Artifact:
    def __init__(self, name: str, type: str, description: str) -> None:
        self.about, self.files = (name, type, description), []

    def add_file(self, path: str) -> None:
        self.files.append(path)


def logger(name: str, **parts: Any) -> Any:
    """A logger of a class of this name."""
    return type(name, (), {})() if not parts else type(name, (), parts)()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of stand-ins of the libraries."""
    noted: list[tuple[Any, ...]] = []
    monkeypatch.setitem(sys.modules, "mlflow", Calls("mlflow", noted))  # type: ignore[arg-type]
    wandb = types.SimpleNamespace(Artifact=Artifact)
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    return noted


def test_writers_of_tensorboard_get_the_text(notes: list[tuple[Any, ...]]) -> None:
    writer = Calls("writer", notes)
    loggers = [
        logger("TensorBoardCallback", tb_writer=writer),
        logger("TensorBoardLogger", experiment=writer),
        logger("TensorBoardTracker", tracker=writer),
    ]
    hand_over(loggers, PAGE, "text")
    assert notes == [("writer.add_text", "commtrace/report", "text"), ("writer.flush",)] * 3


def test_runs_of_wandb_get_an_artifact(notes: list[tuple[Any, ...]]) -> None:
    run = Calls("run", notes)
    loggers = [
        logger("WandbCallback", _wandb=types.SimpleNamespace(run=run)),
        logger("WandbLogger", experiment=run),
        logger("WandBTracker", tracker=run),
    ]
    hand_over(loggers, PAGE, "text")
    assert [name for name, _ in notes] == ["run.log_artifact"] * 3
    for _, artifact in notes:
        assert artifact.about == ("commtrace-report", "report", "text")
        assert artifact.files == [str(PAGE)]


def test_runs_of_mlflow_get_the_file(notes: list[tuple[Any, ...]]) -> None:
    client = Calls("client", notes)
    loggers = [
        logger("MLflowCallback", _ml_flow=None),
        logger("MLflowTracker", tracker=None),
        logger("MLFlowLogger", experiment=client, run_id="7"),
    ]
    hand_over(loggers, PAGE, "text")
    of_active = ("mlflow.log_artifact", str(PAGE))
    assert notes == [of_active, of_active, ("client.log_artifact", "7", str(PAGE))]


def test_without_a_page_there_is_only_text(notes: list[tuple[Any, ...]]) -> None:
    run = Calls("run", notes)
    hand_over(
        [logger("WandbLogger", experiment=run), logger("MLflowTracker", tracker=None)], None, ""
    )
    hand_over([logger("TensorBoardLogger", experiment=run)], None, "text")
    assert notes[0] == ("run.add_text", "commtrace/report", "text")


def test_a_derived_logger_is_known_and_another_is_left_alone(notes: list[tuple[Any, ...]]) -> None:
    base = type("TensorBoardLogger", (), {"experiment": Calls("writer", notes)})
    hand_over([type("Own", (base,), {})(), logger("CSVLogger")], PAGE, "text")
    assert len(notes) == 2


def test_a_failing_logger_is_a_warning() -> None:
    failing = logger("WandbLogger")  # without `experiment`
    with pytest.warns(RuntimeWarning, match="WandbLogger has no page: .*experiment"):
        hand_over([failing], PAGE, "text")
