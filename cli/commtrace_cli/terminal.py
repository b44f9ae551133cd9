"""What people see: data on stdout, words about the work on stderr, colour only on a terminal."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from commtrace.errors import CommtraceError, UsageError
from commtrace.units import text_of_bytes

PIPED_WIDTH = 160


class ClosedOutput(Exception):
    """Who read the output has closed it, as `head` does."""


class _DataConsole(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main` how that ends."""
        raise ClosedOutput


def data_console() -> Console:
    """Where results go: stdout, as wide as the terminal, or wide enough for a pipe."""
    return _DataConsole(width=None if _has_width(sys.stdout.isatty()) else PIPED_WIDTH)


def write(text: str) -> None:
    """Print a document as it is."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise ClosedOutput from None


def _has_width(is_terminal: bool) -> bool:
    return is_terminal or os.environ.get("COLUMNS", "").isdigit()


def word_console() -> Console:
    """Where words about the work go: stderr, never broken into lines but on a terminal."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def working(on: str) -> Iterator[None]:
    """Show that the work is going on while the body runs; silent where stderr is no terminal."""
    console = word_console()
    if not console.is_terminal:
        yield
        return
    with console.status(Text(on)):
        yield


def say(text: str, *, always: bool = False) -> None:
    """A line about the work, as it is; only where somebody watches, or `always`."""
    console = word_console()
    if text and (always or console.is_terminal):
        console.print(Text(text))


def colour_of_kind(kind: str) -> str:
    """The colour of a kind of communication on a terminal, be it dark or light."""
    from commtrace.figures.theme import THEMES, readable_anywhere

    return readable_anywhere(theme.kind(kind) for theme in THEMES.values())


def finish(files: Sequence[Path], *, then: Sequence[str | Path]) -> None:
    """End a command: the files it wrote, with their size, and the command to try next."""
    console = word_console()
    for file in files:
        size = f" ({text_of_bytes(file.stat().st_size)})" if file.is_file() else ""
        console.print(Text.assemble("wrote ", (str(file), "bold"), size))
    command = shlex.join(str(word) for word in then)
    console.print(Text.assemble("next  ", (command, "bold cyan")))


def fail(error: CommtraceError) -> None:
    """Say what went wrong."""
    first, _, rest = str(error).partition("\n")
    console = word_console()
    console.print(Text.assemble(("error: ", "bold red"), first))
    if rest:
        console.print(Text(rest))


def check_output(path: Path, *, force: bool) -> None:
    """Refuse an output that cannot or should not be written, before any work is done."""
    asked = f"cannot write {path}"
    if path.is_dir():
        raise UsageError(asked, found="a folder of that name", attempt=f"-o {path / 'FILE'}")
    if not path.parent.is_dir():
        raise UsageError(
            asked,
            found=f"no folder {path.parent}",
            attempt=f"`mkdir -p {shlex.quote(str(path.parent))}`, or another -o",
        )
    if path.exists() and not force:
        raise UsageError(
            asked,
            found="a file of that name",
            why="nothing is overwritten unasked",
            attempt="another -o, or --force to overwrite it",
        )
