"""Dumps of faulthandler are read back, thread by thread."""

from __future__ import annotations

import faulthandler
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

from commtrace.tracefile.thread_dumps import dumps_in, text_of_first_dump, users_frame

TWO_DUMPS = """\
Thread 0x00000000000000a1 [loader] (most recent call first):
  File "train.py", line 3 in load
Current thread 0x00000000000000b2 (most recent call first):
  File "train.py", line 8 in inner
  File "train.py", line 10 in outer

Thread 0x00000000000000a1 [loader] (most recent call first):
  <no Python frame>
"""


def test_a_text_has_several_dumps_of_several_threads() -> None:
    first, second = dumps_in(TWO_DUMPS)
    assert [(each.ident, each.name) for each in first] == [(0xA1, "loader"), (0xB2, "")]
    assert first[1].frames == (("train.py", 10, "outer"), ("train.py", 8, "inner"))
    assert [(each.ident, each.frames) for each in second] == [(0xA1, ())]
    assert dumps_in(text_of_first_dump(TWO_DUMPS)) == [first]
    assert dumps_in("no dump at all") == []


def test_what_python_writes_is_understood(tmp_path: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        (dump,) = dumps_in(file.read())
    stop.set()
    thread.join()
    by_ident = {each.ident: each.frames for each in dump}
    line = sys._getframe().f_code.co_firstlineno
    own = [frame for frame in by_ident[threading.get_ident()] if frame[0] == __file__]
    assert own[-1][2] == sys._getframe().f_code.co_name
    assert own[-1][1] > line
    assert by_ident[thread.ident or 0][-1][2] == "wait"


@pytest.mark.parametrize(
    "library",
    [
        f"{sysconfig.get_path('stdlib')}/threading.py",
        "/opt/conda/lib/python3.12/queue.py",
        "/srv/env/lib/python3.10/site-packages/torch/_ops.py",
        "/usr/lib/python3/dist-packages/yaml/loader.py",
        "<frozen runpy>",
        dumps_in.__code__.co_filename,
    ],
)
def test_the_users_frame_is_the_innermost_outside_of_libraries(library: str) -> None:
    frames = [("/home/me/train.py", 3, "main"), ("/home/me/data.py", 5, "load"), (library, 7, "f")]
    assert users_frame(frames) == frames[1]
    assert users_frame(frames[2:]) is None
