"""Ranks that Open MPI's `mpirun` starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.launchers.programs import TRAIN, recorded, require_whole, run

pytestmark = pytest.mark.usefixtures("preloaded")


def test_ranks_record_themselves(tmp_path: Path) -> None:
    if not shutil.which("mpirun"):
        pytest.skip("there is no mpirun; Debian's package openmpi-bin has it")
    (tmp_path / "train.py").write_text(TRAIN)
    permitted = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = ["mpirun", *permitted, "--oversubscribe", "-n", "2"]
    command = [*mpirun, *recorded(), "train.py", tmp_path / "meeting"]
    trace = require_whole(tmp_path / "RUN.comm", 2, run(command, tmp_path))
    assert trace.run["launcher"] == "Open MPI"
    assert trace.run["run_id"]
