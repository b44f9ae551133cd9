"""Signs of life change the time of a file and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

from commtrace.tracefile.liveness import beat, process_age_s


def test_a_beat_sets_the_time_of_the_file_only(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.spool"
    with path.open("w+b", buffering=0) as stream:
        stream.write(b"data")
        os.utime(path, (1, 1))
        beat(stream)
        assert abs(path.stat().st_mtime - time.time()) < 60
        assert path.read_bytes() == b"data"
        assert stream.tell() == 4


def test_a_beat_of_a_closed_or_removed_file_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.spool"
    stream = path.open("w+b", buffering=0)
    path.unlink()
    beat(stream)
    stream.close()
    beat(stream)
    assert not path.exists()


def test_this_process_has_an_age_and_no_other_one_of_its_number() -> None:
    assert 0 < process_age_s(os.getpid()) < 1e7
    assert process_age_s(1 << 30) == float("inf")
