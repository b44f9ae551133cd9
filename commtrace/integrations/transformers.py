"""Callback for transformers' Trainer.

    trainer = Trainer(...)
    trainer.add_callback(CommtraceTrainerCallback(trainer))
    trainer.train()

A step is a step of the trainer; regions are `train`, `evaluate` and `save`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.integrations.artifacts import hand_over
from commtrace.integrations.libraries import library
from commtrace.integrations.monitor import EVERY_N_STEPS, TrainingMonitor
from commtrace.session import Recording

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback, TrainerControl
else:
    TrainerCallback = library(
        "commtrace.integrations.transformers", "transformers", install="transformers"
    ).TrainerCallback


class CommtraceTrainerCallback(TrainerCallback):
    """Records the training of a Trainer, and logs numbers of its communication.

    It moves before the callbacks of the trainer's loggers when training begins, since these close
    their runs at the end.

    Args:
        trainer: the trainer, by whose `log` the numbers are logged.
        every_n_steps: steps between two logs.
        folder: folder for the page and the recording; by default the trainer's `output_dir`.
        recording: the recording to make if none is on, such as `commtrace.record(path, every=100)`;
            by default of communication only, to RUN.comm in the folder.

    Raises:
        UsageError: `every_n_steps` is no number of steps.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        every_n_steps: int = EVERY_N_STEPS,
        folder: Path | str | None = None,
        recording: Recording | None = None,
    ) -> None:
        self._trainer = trainer
        self._folder = folder
        self._monitor = TrainingMonitor(every_n_steps=every_n_steps, recording=recording)

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Begin to record."""
        handler = self._trainer.callback_handler
        first, *others = [each for each in handler.callbacks if each is not self]
        # A new list, since the handler is going through the former one.
        handler.callbacks = [first, self, *others]
        self._monitor.begin(self._folder or args.output_dir or ".")
        self._monitor.enter("train")

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """End a step; log numbers if they are due."""
        self._monitor.step()
        if numbers := self._monitor.scalars():
            self._log(numbers, control)
        self._enter_next(control)

    def on_epoch_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Enter the region of an evaluation, or of saving, that follows."""
        self._enter_next(control)

    def on_evaluate(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Leave the region of the evaluation."""
        self._enter_next(control)

    def on_save(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Leave the region of saving."""
        self._monitor.enter("train")

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """End the recording, write the page, and hand both to the loggers."""
        ending = self._monitor.end()
        if ending is not None:
            if ending.scalars:
                self._log(ending.scalars, control)
            hand_over(self._trainer.callback_handler.callbacks, ending.page, ending.text)

    def _enter_next(self, control: TrainerControl) -> None:
        """Enter the region of what the trainer does next: it evaluates before it saves."""
        is_next = {"evaluate": control.should_evaluate, "save": control.should_save}
        self._monitor.enter(next((name for name, is_due in is_next.items() if is_due), "train"))

    def _log(self, numbers: dict[str, float], control: TrainerControl) -> None:
        should_log = control.should_log  # logging resets it, and the trainer has yet to log
        self._trainer.log(numbers)
        control.should_log = should_log
