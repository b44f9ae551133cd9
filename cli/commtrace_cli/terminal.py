"""Output for people: data on stdout, notes on stderr, colour only on a terminal.

All output of a command goes through the consoles of this file, or through `write`, so that nothing
in a trace, a file name or an argument can move the cursor, set a title or reverse a line. `Text` is
rich's, with control characters made visible before any width is computed; a console does the same
for all other renderables.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.segment import Segment
from rich.text import Text as RichText

from commtrace.atomic_write import check_writable
from commtrace.errors import CommtraceError, UsageError
from commtrace.escaping import visible
from commtrace.units import text_of_bytes

if TYPE_CHECKING:
    from commtrace.views.lines import StyledLine

PIPED_WIDTH = 160


_SPARED = str.maketrans("█▁▂▃▄–›…·µ×", "#__==->~.ux")  # noqa: RUF001


class ClosedOutput(Exception):
    """The reader has closed the output, as `head` does."""


class Text(RichText):
    """Part of a line, with unprintable characters made visible."""

    def __init__(self, text: str = "", style: Any = "", **more: Any) -> None:
        super().__init__(visible(text), style, **more)

    @classmethod
    def assemble(cls, *parts: Any, **more: Any) -> Text:
        """Build a text from parts: strings, texts, and pairs of a string and its style."""
        return cast("Text", super().assemble(*parts, **more))

    def append(self, text: RichText | str, style: Any = None) -> Text:
        """Append a text; a string is made visible first."""
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self


def styled(line: StyledLine) -> Text:
    """Return a line of `commtrace.views.lines` for a console."""
    from commtrace.views.lines import STYLES

    return Text.assemble(*((text, STYLES[style][0]) for text, style in line))


class _Console(Console):
    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Yield segments, without control codes in their text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_shown(segment.text))


def _shown(text: str) -> str:
    return visible(text, keep="\n")


class _DataConsole(_Console):
    def on_broken_pipe(self) -> None:
        """Leave the exit to `main`."""
        # rich's own method ends the program with exit code 1.
        raise ClosedOutput


class _Trimmed(io.TextIOBase):
    """Stdout without trailing blanks, which fill the last cell of a line."""

    def write(self, text: str) -> int:
        sys.stdout.write(re.sub(" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stdout.encoding


def data_console() -> Console:
    """Return the console for results: stdout, as wide as the terminal or, in a pipe, fixed."""
    is_terminal = sys.stdout.isatty()
    width = None if _has_width(is_terminal) else PIPED_WIDTH
    file = None if is_terminal else cast("IO[str]", _Trimmed())
    return _DataConsole(width=width, file=file)


def write(text: str) -> None:
    """Print a document for programs unchanged; on a terminal, control characters become visible."""
    if is_terminal(sys.stdout):
        text = _shown(text)
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise ClosedOutput from None


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal."""
    return stream.isatty()


def _has_width(is_terminal: bool) -> bool:
    return is_terminal or os.environ.get("COLUMNS", "").isdigit()


def forget_odd_sizes() -> None:
    """Remove invalid terminal sizes from the environment: rich prints nothing at a width of 0."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch(r"0*[1-9]\d{0,3}", os.environ.get(name, ""), re.ASCII):
            os.environ.pop(name, None)


def spare_letters(*streams: TextIO) -> None:
    """Make streams replace bars and dashes that their encoding lacks by ASCII characters."""
    codecs.register_error("spare", _spared)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="spare")


def _spared(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = error.object[error.start : error.end].translate(_SPARED)
    return "".join(letter if letter.isascii() else "?" for letter in plain), error.end


def word_console() -> Console:
    """Return the console for notes: stderr, wrapped only on a terminal."""
    return _Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def working(on: str) -> Iterator[None]:
    """Show a spinner while the body runs; nothing if stderr is not a terminal."""
    console = word_console()
    if not console.is_terminal:
        yield
        return
    with console.status(Text(on)):
        yield


@contextmanager
def counting(on: str) -> Iterator[Callable[[int, int], None]]:
    """Show a spinner while the body runs; yield a function of how much is done, and of how much."""
    console = word_console()
    if not console.is_terminal:
        yield _ignore
        return
    with console.status(Text(on)) as status:

        def show(done: int, of: int) -> None:
            status.update(Text(f"{on}: {done:,} of {of:,}"))

        yield show


def _ignore(done: int, of: int) -> None:
    """Show nothing."""


def say(text: str, *, always: bool = False) -> None:
    """Print notes about the work; only on a terminal, unless `always`."""
    console = word_console()
    if text and (always or console.is_terminal):
        for line in _fitting(text, console):
            console.print(Text(line))


def show_traceback(text: str) -> None:
    """Print a traceback or stacks on stderr; long lines of code are left to the terminal."""
    console = word_console()
    for line in text.expandtabs().split("\n") if text else ():  # tabs would be shown as escapes
        console.print(Text(line))


_SPACE_IN_COMMAND = "\0"


def _fitting(text: str, console: Console) -> Iterator[str]:
    """Yield the lines of a text, wrapped between words on a terminal, with commands kept whole.

    Continuation lines are indented by two more.
    """
    for line in text.split("\n"):
        if not console.is_terminal or len(line) <= console.width:
            yield line
            continue
        joined = re.sub("`[^`]*`", lambda each: each[0].replace(" ", _SPACE_IN_COMMAND), line)
        indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
        for part in textwrap.wrap(
            joined,
            console.width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            yield part.replace(_SPACE_IN_COMMAND, " ")


def colour_of_kind(kind: str) -> str:
    """Return the colour of a kind of communication, readable on dark and light terminals."""
    from commtrace.figures.theme import THEMES, readable_anywhere

    return readable_anywhere(theme.kind(kind) for theme in THEMES.values())


def finish(files: Sequence[Path], *, then: Sequence[str | Path]) -> None:
    """End a command: print the files it wrote, with their size, and the next command to try."""
    console = word_console()
    for file in files:
        size = f" ({text_of_bytes(file.stat().st_size)})" if file.is_file() else ""
        console.print(Text.assemble("wrote ", (str(file), "bold"), size))
    command = " ".join(_quoted(str(word)) for word in then)
    console.print(Text.assemble("next  ", (command, "bold cyan")))


def _quoted(word: str) -> str:
    """Quote a word for a shell, using printable characters only."""
    if word.isprintable():
        return shlex.quote(word)
    letters = (
        letter if letter.isprintable() and letter not in "'\\" else _hexadecimal(letter)
        for letter in word
    )
    return f"$'{''.join(letters)}'"


def _hexadecimal(letter: str) -> str:
    is_byte = "\udc80" <= letter <= "\udcff"  # a byte of a file name that is not UTF-8
    encoded = os.fsencode(letter) if is_byte else letter.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in encoded)


_ERROR = "error: "


def fail(error: CommtraceError) -> None:
    """Print an error."""
    console = word_console()
    first, *rest = _fitting(f"{_ERROR}{error}", console)
    console.print(Text.assemble((_ERROR, "bold red"), first.removeprefix(_ERROR)))
    for line in rest:
        console.print(Text(line))


def default_path(trace: Path, suffix: str) -> Path:
    """Return the default path of what is made from a trace: named after it, in the current folder.

    >>> str(default_path(Path("runs/b.json"), ".html")), str(default_path(Path("RUN.comm"), "_csv"))
    ('b.html', 'RUN_csv')
    """
    name = trace.resolve().name
    for ending in (".gz", ".json", ".comm", ".spools"):
        name = name.removesuffix(ending)
    return Path(f"{name or 'run'}{suffix}")


def check_output(
    path: Path, *, force: bool, read: Sequence[Path] = (), is_folder: bool = False
) -> None:
    """Refuse an output that cannot or should not be written, before any work is done.

    `read` are the files and folders that the command reads, which it must not overwrite, nor remove
    with the folder that they are in.
    """
    if not (is_folder and path.is_dir()):
        check_writable(path)
    if not path.exists():
        return
    if not force:
        kind = "folder" if path.is_dir() else "file"
        raise UsageError(
            f"cannot write {path}",
            found=f"an existing {kind}",
            why=f"existing {kind}s are only overwritten with --force",
            attempt="another -o, or --force to overwrite it",
        )
    replaced = path.resolve()
    if any(
        _is_part_of(path, source) or (is_folder and replaced in source.resolve().parents)
        for source in read
    ):
        raise UsageError(
            f"cannot write {path}",
            found="a file that this command reads",
            why="no command overwrites its own input",
            attempt="another -o",
        )


def _is_part_of(path: Path, source: Path) -> bool:
    if not source.exists():
        return False
    return path.samefile(source) or (source.is_dir() and source.resolve() in path.resolve().parents)
