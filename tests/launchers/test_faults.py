"""Folders that cannot be written, or not for long: programs are unharmed, and any loss is named."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commtrace.tracefile import read_trace
from tests.launchers.programs import recorded, run

pytestmark = pytest.mark.usefixtures("preloaded")

# Calls of many sites, so that each batch takes room on the disk.
MANY = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/own", rank=0, world_size=1)
for number in range(3000):
    dist.all_reduce(torch.ones(number + 1))
    if number % 300 == 0:
        time.sleep(0.3)  # longer than a recording buffers
dist.destroy_process_group()
print("trained")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(MANY)
    return tmp_path


def require_partial(path: Path, code: int, text: str) -> None:
    assert code == 0, text
    assert "trained" in text
    assert "commtrace: rank 0: the recording lacks" in text
    assert "RuntimeWarning" not in text
    trace = read_trace(path)
    kept = trace.num_rows("comm")
    assert 0 < kept < 3000
    # Calls of the last batches may neither have been written nor counted.
    assert trace.tables["ranks"]["num_events"][0] == kept


def test_a_full_disk_keeps_what_was_written(program: Path, disk_of: Callable[[str], Path]) -> None:
    output = disk_of("40k") / "RUN.comm"
    ended = run([*recorded(output), "train.py", program], program)
    assert "no space left on device" in ended.text
    require_partial(output, ended.code, ended.text)
    trace = read_trace(output)
    assert trace.run["write_errors"] == ["rank 0: no space left on device"]
    assert list(trace.tables["ranks"]["complete"]) == [True]
    assert trace.num_rows("comm") + trace.tables["ranks"]["num_dropped"][0] == 3000
    shown = run([sys.executable, "-m", "commtrace_cli", "summary", output], program).text
    assert "could not be written (rank 0: no space left on device)" in " ".join(shown.split())


def test_a_limit_on_files_keeps_what_was_written(program: Path) -> None:
    words = shlex.join([*map(str, recorded()), "train.py", str(program)])
    ended = run(["bash", "-c", f"ulimit -f 40; exec {words}"], program)
    assert "file too large" in ended.text
    require_partial(program / "RUN.comm", ended.code, ended.text)


def test_a_read_only_folder_is_named_and_the_program_runs(program: Path) -> None:
    folder = program / "shut"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):  # root may write everywhere but into /proc
        folder = Path("/proc")
    ended = run([*recorded(folder / "RUN.comm"), "train.py", program], program)
    assert ended.code == 0
    assert "commtrace: this process is not recorded" in ended.text
    assert "Traceback" not in ended.text
    assert ended.text.endswith("trained\n")
