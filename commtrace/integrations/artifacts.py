"""The page of a run, handed to the loggers of a trainer that take files.

    WandbLogger ── experiment ──> run.log_artifact(page)
    TensorBoardTracker ── tracker ──> writer.add_text(findings, path of the page)

Nothing is imported for it: a logger that the trainer uses has loaded its own library.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

ARTIFACT_NAME, TEXT_NAME = "commtrace-report", "commtrace/report"


def hand_over(loggers: Iterable[Any], page: Path | None, text: str) -> None:
    """Hand the page to the loggers that take it; a failure is a warning.

    Args:
        loggers: all loggers of a trainer.
        page: the page; None if there is none.
        text: text beside it, for loggers that take text.
    """
    for logger in loggers:
        names = (each.__name__ for each in type(logger).__mro__)
        known = next((_LOGGERS[name] for name in names if name in _LOGGERS), None)
        if known is None:
            continue
        part_of, log = known
        try:
            log(part_of(logger), page, text)
        except Exception as error:  # of any library, at the end of a training
            name = type(logger).__name__
            warnings.warn(f"commtrace: {name} has no page: {error}", RuntimeWarning, stacklevel=2)


def _to_tensorboard(writer: Any, page: Path | None, text: str) -> None:
    writer.add_text(TEXT_NAME, text)
    writer.flush()


def _to_wandb(run: Any, page: Path | None, text: str) -> None:
    if page is not None:
        artifact = sys.modules["wandb"].Artifact(ARTIFACT_NAME, type="report", description=text)
        artifact.add_file(str(page))
        run.log_artifact(artifact)


def _to_mlflow(of_run: Any, page: Path | None, text: str) -> None:
    if page is not None:
        sys.modules["mlflow"].log_artifact(str(page))  # to the active run


def _to_lightning_mlflow(logger: Any, page: Path | None, text: str) -> None:
    if page is not None:
        logger.experiment.log_artifact(logger.run_id, str(page))


def _itself(logger: Any) -> Any:
    return logger


_LOGGERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Path | None, str], None]]] = {
    "TensorBoardCallback": (attrgetter("tb_writer"), _to_tensorboard),
    "TensorBoardLogger": (attrgetter("experiment"), _to_tensorboard),
    "TensorBoardTracker": (attrgetter("tracker"), _to_tensorboard),
    "WandbCallback": (attrgetter("_wandb.run"), _to_wandb),
    "WandbLogger": (attrgetter("experiment"), _to_wandb),
    "WandBTracker": (attrgetter("tracker"), _to_wandb),
    "MLflowCallback": (attrgetter("_ml_flow"), _to_mlflow),
    "MLflowTracker": (attrgetter("tracker"), _to_mlflow),
    "MLFlowLogger": (_itself, _to_lightning_mlflow),
}
