"""Entry point of a rank that the launcher starts: runs a script or a function under a recording.

    python -m commtrace.launching.bootstrap SCRIPT [ARGS]
    python -m commtrace.launching.bootstrap -m MODULE [ARGS]
    python -m commtrace.launching.bootstrap --call NAME   what `pickling.pack` left with the spools

The script runs as if started directly: `__main__`, `sys.argv`, `sys.path`. If it raises, the
recording is closed first. The traceback, starting at the script's own first frame, is then left
beside the spools, for the launcher to print once; this process prints nothing. A rank of a
function registers with the watchdog.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the current folder, whose files are no modules of Python or torch

import contextlib
import functools
import json
import os
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from commtrace.atomic_write import atomic_write, finished
from commtrace.exit_handlers import call_at_exit
from commtrace.launching.child_ranks import Launch, close_gloo, note_end, notes_of, watch_children
from commtrace.launching.main_program import is_own, prepare_main, show_no_own_frames
from commtrace.launching.pickling import keep_result, read_own, unpack
from commtrace.launching.processes import die_with_parent
from commtrace.launching.watchdog import register_rank
from commtrace.permissions import opener
from commtrace.process_options import ProcessOptions, options_of

if TYPE_CHECKING:
    from commtrace.session import Recording

SPOOLS_VARIABLE = "COMMTRACE_SPOOLS"
BACKEND_VARIABLE = "COMMTRACE_BACKEND"
WATCHED_VARIABLE = "COMMTRACE_WATCHED"
CALL_OPTION = "--call"
PARCEL_NAME = "parcel"

_FAILURE_SUFFIX = ".failure.json"
_INTERRUPTED = 128 + signal.SIGINT
_ABORTED = 128 + signal.SIGABRT


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a rank; `traceback` is empty if the rank chose its exit code itself."""

    time_ns: int
    rank: int
    exit_code: int
    traceback: str


def read_failures(folder: Path) -> list[Failure]:
    """Return the failures that the ranks of a launch noted in `folder`, earliest first."""
    found = [
        Failure(**json.loads(path.read_text(encoding="utf-8")))
        for path in finished(folder, f"*{_FAILURE_SUFFIX}")
    ]
    return sorted(found, key=lambda failure: (failure.time_ns, failure.rank))


def main() -> None:
    """Run the script, or call the function, named on the command line."""
    die_with_parent()
    # Line-buffered, since ranks share one output and lines must not run into each other.
    sys.stdout.reconfigure(  # pyright: ignore[reportAttributeAccessIssue]
        line_buffering=True, write_through=False
    )
    # Removed from the environment, so that the script's own processes do not inherit them.
    folder = Path(os.environ.pop(SPOOLS_VARIABLE))
    notes = notes_of(folder)
    options = options_of(os.environ)
    for name in options.variables():
        os.environ.pop(name, None)
    rank = int(os.environ["RANK"])
    launch = Launch(folder, options, int(os.environ["WORLD_SIZE"]), (os.getpid(),))
    if os.environ.pop(WATCHED_VARIABLE, ""):
        register_rank(notes, rank)
    if sys.argv[1] == CALL_OPTION:
        sys.argv = sys.argv[2:]
        sys.path.insert(0, os.getcwd())
        run = functools.partial(_call, notes, rank)
    else:
        run = prepare_main(sys.argv[1:])
    stack = contextlib.ExitStack()
    # At exit, since threads and exit handlers of the program may still communicate; and after a
    # failure is noted, since closing makes the other ranks fail.
    call_at_exit(stack.close)
    stack.callback(close_gloo)
    stack.enter_context(_recorded(folder, options))
    stack.enter_context(_noting_aborts(notes, rank))
    watch_children(launch)
    try:
        run()
    except BaseException as error:
        if os.getpid() not in launch.pids:  # a forked child of the program, which is no rank
            show_no_own_frames()
            raise
        note_end(error)
        _end_by(error, notes, rank)


def _end_by(error: BaseException, notes: Path, rank: int) -> NoReturn:
    """End the process as an exception of the program does, after noting the failure."""
    if isinstance(error, KeyboardInterrupt):
        # Left without a note: the rank was asked to end and has not failed.
        sys.exit(_INTERRUPTED)
    if isinstance(error, SystemExit):
        if error.code not in (None, 0):
            _leave_failure(notes, rank, error.code if isinstance(error.code, int) else 1, "")
        raise error
    _leave_failure(notes, rank, 1, _traceback_of_script(error))
    close_gloo()  # so that no thread keeps this process, which has failed, in a collective
    sys.exit(1)


def _recorded(folder: Path, options: ProcessOptions) -> Recording:
    from commtrace.session import record_process
    from commtrace.tracefile.destinations import SpoolFolder

    return record_process(SpoolFolder(folder), options)


@contextlib.contextmanager
def _noting_aborts(folder: Path, rank: int) -> Iterator[None]:
    """Note an abort by C++ during the body, before the peers lose the rank."""
    from commtrace.recorder.terminate_handler import add_terminate_handler, remove_terminate_handler

    note_abort = functools.partial(_leave_failure, folder, rank, _ABORTED, "")
    add_terminate_handler(note_abort)
    try:
        yield
    finally:
        remove_terminate_handler(note_abort)


def _call(folder: Path, rank: int) -> None:
    """Call the function that was sent, and store its result."""
    for stream in (sys.stdout, sys.stderr):
        _redirect(stream, output_path(folder, rank, stream.name.strip("<>")))
    register_rank(folder, rank)
    backend = os.environ.pop(BACKEND_VARIABLE)
    if backend:
        _begin_group(backend)
    keep_result(folder, rank, unpack(read_own(folder / PARCEL_NAME))())


def output_path(folder: Path, rank: int, name: str) -> Path:
    """Return the file that a rank of a function prints to; `name` is stdout or stderr."""
    return folder / f"rank-{rank:05d}.{name}"


def _redirect(stream: TextIO, path: Path) -> None:
    """Redirect `stream`, including output of extensions, to a file."""
    stream.flush()
    with open(path, "wb", opener=opener) as file:
        os.dup2(file.fileno(), stream.fileno())


def _begin_group(backend: str) -> None:
    """Create the process group; a function that creates its own then uses this group."""
    import torch.distributed as dist

    make = dist.init_process_group
    make(backend)

    @functools.wraps(make)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        requested = args[0] if args else kwargs.get("backend")
        if dist.is_initialized() and requested in (None, backend):
            dist.init_process_group = make
        else:
            make(*args, **kwargs)

    dist.init_process_group = init_process_group


def _leave_failure(folder: Path, rank: int, exit_code: int, text: str) -> None:
    failure = Failure(time.time_ns(), rank, exit_code, text)
    with atomic_write(folder / f"rank-{rank:05d}{_FAILURE_SUFFIX}") as unfinished:
        unfinished.write_text(json.dumps(asdict(failure)), encoding="utf-8")


def _traceback_of_script(error: BaseException) -> str:
    """Format the traceback without commtrace's frames and those that start the script."""
    exception = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = exception
    while each is not None:
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if not is_own(frame.filename)]
        )
        each = each.__cause__ or each.__context__
    return "".join(exception.format())


if __name__ == "__main__":
    main()
