"""Entry point of `commtrace record`: runs a program in this process, under a recording.

    COMMTRACE=RUN.comm python -m commtrace.launching.record_program SCRIPT [ARGS]
    COMMTRACE=RUN.comm python -m commtrace.launching.record_program -m MODULE [ARGS]

The process is the rank that its launcher says it is, and everything is recorded from the program's
first line until its exit handlers have run. It ends as it would without a recording: with its exit
code, and with a traceback that starts at the program's own first frame.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the current folder, whose files are no modules of Python or torch

import os
from pathlib import Path

from commtrace.exit_handlers import call_at_exit
from commtrace.launching import auto
from commtrace.launching.child_ranks import close_gloo, note_end
from commtrace.launching.main_program import prepare_main, show_no_own_frames
from commtrace.process_options import AUTO_VARIABLE


def main() -> None:
    """Run the program named on the command line."""
    run = prepare_main(sys.argv[1:])
    call_at_exit(close_gloo)  # before the recording, so that the group outlives it
    auto.begin(Path(os.environ[AUTO_VARIABLE]))
    try:
        run()
    except BaseException as error:
        note_end(error)
        if not isinstance(error, SystemExit):
            show_no_own_frames()
        raise


if __name__ == "__main__":
    main()
