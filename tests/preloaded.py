"""Python processes that are forked from a process that has loaded torch, instead of loading it.

    with forked_interpreters():
        subprocess.run([sys.executable, "train.py"], env=..., cwd=...)

Loading torch takes two seconds of a processor, and tests of launchers would start hundreds of
processes that do so. Within the context, `subprocess` forks commands that run this Python with a
script, `-m MODULE` or `-c CODE`: a server, which has loaded torch and commtrace and runs nothing
else, forks a process, which becomes a child of this process and gets the command's arguments,
environment, folder, streams and signals. Launchers among these have a server of their own, forked
before they load anything else. Commands that ask for more, and all commands outside of Linux, are
started as ever.

A forked process differs from a started process in what it has loaded before the program runs. Tests
of how a process starts, and of what it loads, use processes that are started: they have the marker
`cold_start`.

The file exceeds the usual length, since it also runs as a script, before the tests can be imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import itertools
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from greenlet import greenlet

ROOT = Path(__file__).parents[1]
LOADED = (
    "torch", "torch._dynamo", "torch.distributed", "torch.distributed.run", "torch.multiprocessing",
    "commtrace.launching.bootstrap", "commtrace.launching.launcher", "commtrace.session",
    "commtrace.recorder", "commtrace.tracefile.destinations", "commtrace_cli.main",
)  # fmt: skip
"""Modules of a rank and of its launcher."""

_LAUNCHERS = (
    ("-m", "commtrace_cli", "run"), ("-m", "commtrace_cli", "demo"),
    ("-m", "torch.distributed.run"), ("-m", "ipykernel_launcher"),
)  # fmt: skip
_LAUNCHING = ("run_script(", "commtrace.launch(")
"""Calls by which code behind -c launches ranks."""

_CHANGING = {"PYTHONHASHSEED", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONWARNINGS", "PYTHONSAFEPATH"}
"""Variables that change how Python starts."""

_RECORDING = "COMMTRACE"
_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 1 << 20
_START: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]

Streams = Sequence[int]
"""Descriptors of standard input, output and error."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to become."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    is_session: bool

    def is_unbuffered(self) -> bool:
        """The option -u, which torchrun gives."""
        return "-u" in self.arguments[: -len(self.program())]

    def filters(self) -> list[str]:
        """The values of options -W, each an argument of its own."""
        words = self.arguments[: -len(self.program())]
        return [after for word, after in itertools.pairwise(words) if word == "-W"]

    def program(self) -> tuple[str, ...]:
        """The arguments behind Python's name and its options."""
        first = 1
        while self.arguments[first:] and self.arguments[first] in ("-u", "-W"):
            first += 1 + (self.arguments[first] == "-W")
        return tuple(self.arguments[first:])

    def is_supported(self) -> bool:
        """True if a forked process can become this command."""
        program, environment = self.program(), self.environment
        return (
            self.arguments[0] == sys.executable
            and bool(program)
            and (program[0] in ("-m", "-c") or program[0].endswith(".py"))
            and not _CHANGING & environment.keys()
        )

    def is_launcher(self) -> bool:
        """True if it starts ranks, rather than being a rank."""
        program = self.program()
        if program[0] == "-c":
            return any(each in program[1] for each in _LAUNCHING)
        return any(program[: len(each)] == each for each in _LAUNCHERS)


@contextlib.contextmanager
def forked_interpreters() -> Iterator[None]:
    """Let `subprocess` fork interpreters in the body, where they can be."""
    if sys.platform != "linux":
        yield
        return
    server = _server()
    with _forking(server.fork):
        yield


@contextlib.contextmanager
def _forking(fork: Callable[[Command, Streams], int]) -> Iterator[None]:
    execute = functools.partialmethod(_execute_child, fork)
    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _START  # type: ignore[attr-defined]


def _execute_child(
    process: Any,
    fork: Callable[[Command, Streams], int],
    arguments: Any,
    executable: Any,
    preexec: Any,
    close_fds: bool,
    pass_fds: Sequence[int],
    folder: Any,
    environment: Mapping[str, str] | None,
    *rest: Any,
) -> None:
    """Fork a command that is supported; start any other.

    `rest` is what `subprocess` passes on: nothing of Windows, `shell`, the ends of three pipes, and
    settings; the last are the session and, as of Python 3.11, the process group.
    """
    shell, ends, is_session = rest[2], rest[3:9], rest[14]
    command = None
    if not (isinstance(arguments, str | bytes) or shell or preexec or pass_fds) and close_fds:
        command = Command(
            [os.fspath(each) for each in arguments],
            dict(os.environ if environment is None else environment),
            os.path.abspath(folder or "."),
            is_session,
        )
    if command is None or not command.is_supported():
        _START(process, arguments, executable, preexec, close_fds, pass_fds, folder, environment,
               *rest)  # fmt: skip
        return
    stdin, _, _, stdout, _, stderr = ends
    own = tuple(number if end == -1 else end for number, end in enumerate((stdin, stdout, stderr)))
    process.pid = fork(command, own)
    process._child_created = True
    process._close_pipe_fds(*ends)


class _Server:
    """A process that forks, to which this process speaks at a socket; both end together."""

    def __init__(self, start: Callable[[socket.socket, socket.socket], object]) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start(self._socket, its)
        its.close()
        self._lock = threading.Lock()

    def fork(self, command: Command, streams: Streams) -> int:
        """Let a child of this process become the command; return its id."""
        message = json.dumps(asdict(command)).encode()
        assert len(message) < _MOST_BYTES
        # The child's first parent ends at once. Then the child is given to this process.
        prctl = ctypes.CDLL(None).prctl
        with self._lock:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [message], streams)
                answer = self._socket.recv(100)
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert answer, "the server of forked interpreters has ended"
        return int(answer)


@functools.cache
def _server() -> _Server:
    return _Server(_start_server)


def _start_server(own: socket.socket, its: socket.socket) -> None:
    """Start a server that loads torch."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(its.fileno())],
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )

    def end() -> None:
        own.close()
        process.wait(10)

    atexit.register(end)


def _fork_server(own: socket.socket, its: socket.socket) -> None:
    """Fork a server for the processes that this process will start, before it loads anything."""
    client = os.getpid()
    if os.fork():
        return
    own.close()
    for each in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), each)
    with contextlib.suppress(BaseException):
        _fork_on_request(its, client)
    os._exit(0)


_site_path: list[str] = []
"""Folders of modules, besides a program's own folder and PYTHONPATH."""


def serve(requests: socket.socket, path: Sequence[str]) -> None:
    """Load torch, then fork for each request, until there are no more."""
    _site_path.extend(path)
    for each in LOADED:
        importlib.import_module(each)
    gc.collect()
    gc.freeze()
    _fork_on_request(requests, os.getppid())


def _fork_on_request(requests: socket.socket, client: int) -> None:
    while True:
        message, streams, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not message:
            return
        command = Command(**json.loads(message))
        first = os.fork()
        if not first:
            with contextlib.suppress(BaseException):
                _fork_for(client, requests, command, streams)
            os._exit(1)
        os.waitpid(first, 0)
        for each in streams:
            os.close(each)


def _fork_for(client: int, requests: socket.socket, command: Command, streams: Streams) -> NoReturn:
    """Fork once more and end, so that the client becomes the parent, which is then answered."""
    child = os.fork()
    if child:
        os._exit(0)
    while os.getppid() != client:
        os.sched_yield()
    if command.is_session:
        os.setsid()
    requests.send(str(os.getpid()).encode())
    _become(command, streams)


def _execute_here(
    path: str, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> NoReturn:
    """Become another Python program, as `os.execv` and `os.execve` do."""
    assert path == sys.executable
    command = Command(list(arguments), dict(environment), os.getcwd(), is_session=False)
    assert command.is_supported()
    sys.stdout.flush()
    sys.stderr.flush()
    _become(command, (0, 1, 2))


def _become(command: Command, streams: Streams) -> NoReturn:
    """Be a process that runs the command, until its end."""
    code = 1
    try:
        subprocess.Popen._execute_child = _START  # type: ignore[attr-defined]
        _take_streams(streams, is_unbuffered=command.is_unbuffered())
        os.chdir(command.folder)
        multiprocessing.process.ORIGINAL_DIR = command.folder  # type: ignore[attr-defined]
        os.environ.clear()
        os.environ.update(command.environment)
        for each in command.filters():
            sys.warnoptions.append(each)
            warnings._setoption(each)  # type: ignore[attr-defined]
        tempfile.tempdir = None  # the variable TMPDIR may be another one
        _reset_signals()
        os.execv = os.execve = _execute_here
        with contextlib.ExitStack() as stack:
            if command.is_launcher():
                stack.enter_context(_forking(_Server(_fork_server).fork))
            code = _run(command)
    finally:
        os._exit(code)


def _take_streams(streams: Streams, *, is_unbuffered: bool) -> None:
    """Make three descriptors the standard streams, and close all others."""
    for own, given in enumerate([os.dup(each) for each in streams]):
        os.dup2(given, own)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = _stream(0, "<stdin>", "strict")
    sys.stdout = _stream(1, "<stdout>", "strict")
    sys.stderr = _stream(2, "<stderr>", "backslashreplace")
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=is_unbuffered)
    sys.stderr.reconfigure(line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _stream(number: int, name: str, errors: str) -> io.TextIOWrapper:
    """A standard stream, under the name that Python gives it."""
    raw = io.FileIO(number, "w" if number else "r", closefd=False)
    raw.name = name
    buffer = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
    return io.TextIOWrapper(buffer, errors=errors)


def _reset_signals() -> None:
    """As for a program that is started: handled signals are reset, ignored signals stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(command: Command) -> int:
    """Run the program as Python does, with what it does at its end, and return the exit code."""
    code = 0
    try:
        _run_main(command.program(), command.environment.get("PYTHONPATH", ""))
    except SystemExit as request:
        code = _exit_code(request.code)
    except KeyboardInterrupt as error:
        _print(error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        _print(error)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    return code


def _print(error: BaseException) -> None:
    """Print an error as Python does, without frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _run_main(program: Sequence[str], python_path: str) -> None:
    """Run `-m MODULE`, `-c CODE` or a script in a new module `__main__`."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    chosen = [each for each in python_path.split(os.pathsep) if each]
    sys.path[:] = ["", *chosen, *(each for each in _site_path if each not in chosen)]
    importlib.invalidate_caches()
    if os.environ.get(_RECORDING):  # as `commtrace/launching/auto.pth` does when Python starts
        importlib.import_module("commtrace.launching.auto_start")
    first = program[0]
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = list(program[1:])
        for each in (program[1], f"{program[1]}.__main__"):
            module = sys.modules.get(each)
            if module is not None and not hasattr(module, "__path__"):
                del sys.modules[each]
        _at_the_bottom(runpy._run_module_as_main, program[1])  # type: ignore[attr-defined]
    elif first == "-c":
        sys.argv = ["-c", *program[2:]]
        _at_the_bottom(exec, compile(program[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        sys.argv = list(program)
        first = main.__dict__["__file__"] = os.path.abspath(first)
        _at_the_bottom(exec, compile(Path(first).read_bytes(), first, "exec"), main.__dict__)


def _at_the_bottom(function: Callable[..., object], *args: object) -> None:
    """Call a function on a stack of its own, so that no frame of this module is below it."""
    greenlet(function).switch(*args)


if __name__ == "__main__":
    _path = sys.path[1:]
    sys.path[:1] = [str(ROOT), str(ROOT / "cli")]
    from tests import preloaded

    preloaded.serve(socket.socket(fileno=int(sys.argv[1])), _path)
