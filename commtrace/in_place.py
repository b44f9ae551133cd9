"""Entry point of `commtrace record`: runs a program in this process, under a recording.

    COMMTRACE=RUN.comm python -m commtrace.in_place SCRIPT [ARGS]
    COMMTRACE=RUN.comm python -m commtrace.in_place -m MODULE [ARGS]

The process is the rank that its launcher says it is, and everything is recorded from the program's
first line on. It ends as it would without a recording: with its exit code, and with a traceback
that starts at the program's own first frame.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from commtrace import auto
from commtrace.bootstrap import is_own, run_program
from commtrace.child_ranks import close_gloo
from commtrace.process_options import AUTO_VARIABLE


def main() -> None:
    """Run the program named on the command line."""
    sys.argv = sys.argv[1:]  # as the recording states the command
    auto.begin(Path(os.environ[AUTO_VARIABLE]))
    try:
        run_program()
    except Exception as error:
        auto.end()
        error.__traceback__ = _from_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    finally:
        auto.end()
        close_gloo()


def _from_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that start the program."""
    while traceback is not None and is_own(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    main()
