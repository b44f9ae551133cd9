"""The tracker of accelerate needs a folder, and says so on every rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from commtrace.errors import UsageError
from commtrace.integrations.accelerate import CommtraceTracker
from commtrace.session import Recording


def test_a_folder_is_asked_for() -> None:
    accelerator: Any = SimpleNamespace(project_dir=None, trackers=[])
    with pytest.raises(UsageError) as caught:
        CommtraceTracker(accelerator)
    assert str(caught.value) == (
        "cannot record a training of accelerate\n"
        "  found: an accelerator without project_dir, and no folder\n"
        "  why: the recording and its page are files\n"
        '  try: Accelerator(project_dir="out"), or CommtraceTracker(..., folder="out")'
    )
    assert accelerator.trackers == []
    assert Recording.in_progress() is None
