"""Callback for Lightning's Trainer, of the package `lightning` or `pytorch_lightning`.

    trainer = Trainer(..., callbacks=[CommtraceLightningCallback()])
    trainer.fit(model)

A step ends with a batch after which an optimizer has stepped; regions are `train`, `evaluate` and
`save`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.integrations.artifacts import hand_over
from commtrace.integrations.libraries import library
from commtrace.integrations.monitor import EVERY_N_STEPS, TrainingMonitor
from commtrace.session import Recording

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    Callback = library(
        "commtrace.integrations.lightning",
        "lightning.pytorch",
        "pytorch_lightning",
        install="lightning",
    ).Callback


class CommtraceLightningCallback(Callback):
    """Records the training of a Trainer, and logs numbers of its communication.

    Args:
        every_n_steps: steps between two logs.
        folder: folder for the page and the recording; by default the trainer's
            `default_root_dir`.
        recording: the recording to make if none is on, such as `commtrace.record(path, every=100)`;
            by default of communication only, to RUN.comm in the folder.

    Raises:
        UsageError: `every_n_steps` is no number of steps.
    """

    def __init__(
        self,
        *,
        every_n_steps: int = EVERY_N_STEPS,
        folder: Path | str | None = None,
        recording: Recording | None = None,
    ) -> None:
        self._folder = folder
        self._global_step = 0
        self._monitor = TrainingMonitor(every_n_steps=every_n_steps, recording=recording)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to record."""
        self._global_step = trainer.global_step
        self._monitor.begin(self._folder or trainer.default_root_dir)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Enter region `train`."""
        self._monitor.enter("train")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a step, if an optimizer has stepped; log numbers if they are due."""
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._monitor.step()
            self._log(trainer, self._monitor.scalars())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter region `evaluate`."""
        self._monitor.enter("evaluate")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave region `evaluate`."""
        self._monitor.enter("train")

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Enter region `save`, which the next batch or evaluation ends."""
        self._monitor.enter("save")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the recording, without a page."""
        self._monitor.stop()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the recording, write the page, and hand both to the loggers."""
        ending = self._monitor.end()
        if ending is not None:
            self._log(trainer, ending.scalars)
            hand_over(trainer.loggers, ending.page, ending.text)

    def _log(self, trainer: Trainer, numbers: dict[str, float]) -> None:
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(numbers, step=trainer.global_step)
