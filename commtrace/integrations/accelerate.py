"""Tracker for accelerate, beside the trackers that log.

    accelerator = Accelerator(log_with="tensorboard", project_dir="out")
    CommtraceTracker(accelerator)
    accelerator.init_trackers("run")
    for batch in loader:
        ...
        accelerator.log({"loss": loss}, step=step)
    accelerator.end_training()

Steps end where the optimizer steps, which the recorder notices by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.errors import UsageError
from commtrace.integrations.artifacts import hand_over
from commtrace.integrations.libraries import library
from commtrace.integrations.monitor import EVERY_N_STEPS, TrainingMonitor
from commtrace.session import Recording

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker
else:
    GeneralTracker = library(
        "commtrace.integrations.accelerate", "accelerate.tracking", install="accelerate"
    ).GeneralTracker


class CommtraceTracker(GeneralTracker):
    """Records from now until `end_training`, and logs to the accelerator's other trackers.

    It adds itself to the accelerator, so that each `accelerator.log` asks it first. Create it on
    all ranks, before `init_trackers`, which runs on the main one only. `tracker.tracker` is the
    recording: `with tracker.tracker.region("evaluate"):` labels an evaluation.

    Args:
        accelerator: the accelerator.
        every_n_steps: steps between two logs.
        folder: folder for the page and the recording; by default the accelerator's `project_dir`.
        recording: the recording to make if none is on, such as `commtrace.record(path, every=100)`;
            by default of communication only, to RUN.comm in the folder.

    Raises:
        UsageError: `every_n_steps` is no number of steps, or there is no folder.
        RecordingError: the recording cannot be written.
    """

    name = "commtrace"
    requires_logging_directory = False
    main_process_only = False

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        every_n_steps: int = EVERY_N_STEPS,
        folder: Path | str | None = None,
        recording: Recording | None = None,
    ) -> None:
        super().__init__()
        folder = folder or accelerator.project_dir
        if folder is None:
            raise UsageError(
                "cannot record a training of accelerate",
                found="an accelerator without project_dir, and no folder",
                why="the recording and its page are files",
                attempt='Accelerator(project_dir="out"), or CommtraceTracker(..., folder="out")',
            )
        self._accelerator = accelerator
        self._step: int | None = None
        self._monitor = TrainingMonitor(every_n_steps=every_n_steps, recording=recording)
        self._monitor.begin(folder)
        accelerator.trackers.insert(0, self)  # the others close their runs at the end

    @property
    def tracker(self) -> Recording | None:
        """The recording; None once the training has ended."""
        return self._monitor.recording

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log numbers to the other trackers if they are due; `values` are theirs."""
        self._step = step
        self._log(self._monitor.scalars())

    def finish(self) -> None:
        """End the recording, write the page, and hand both to the other trackers."""
        ending = self._monitor.end()
        if ending is not None:
            self._log(ending.scalars)
            hand_over(self._accelerator.trackers, ending.page, ending.text)

    def _log(self, numbers: dict[str, float]) -> None:
        for tracker in self._accelerator.trackers if numbers else ():
            if tracker is not self:
                tracker.log(numbers, step=self._step)
