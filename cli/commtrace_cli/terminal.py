"""Output for people: data on stdout, notes on stderr, colour only on a terminal.

All that a command prints goes through the consoles of this file, or through `write`: nothing that
a trace, a file name or an argument holds can move the cursor, set a title or turn a line around.
`Text` is rich's, whose control characters are made visible before any width is counted; a console
does the same for whatever else it is given.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.segment import Segment
from rich.text import Text as RichText

from commtrace.atomic_write import check_writable
from commtrace.errors import CommtraceError, UsageError
from commtrace.escaping import visible
from commtrace.units import text_of_bytes

PIPED_WIDTH = 160


_SPARED = str.maketrans("█▁▂▃▄–›…·µ×", "#__==->~.ux")  # noqa: RUF001


class ClosedOutput(Exception):
    """Who read the output has closed it, as `head` does."""


class Text(RichText):
    """A piece of one line: whatever cannot be seen in it is made visible."""

    def __init__(self, text: str = "", style: Any = "", **more: Any) -> None:
        super().__init__(visible(text), style, **more)

    @classmethod
    def assemble(cls, *parts: Any, **more: Any) -> Text:
        """A text of parts: strings, texts, and pairs of a string and its style."""
        return cast("Text", super().assemble(*parts, **more))

    def append(self, text: RichText | str, style: Any = None) -> Text:
        """Add a text; that of a string is made visible, too."""
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self


class _Console(Console):
    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Segments to be written, without the control codes that only a console may send."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_shown(segment.text))


def _shown(text: str) -> str:
    return visible(text, keep="\n")


class _DataConsole(_Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main` how that ends."""
        raise ClosedOutput


class _Trimmed(io.TextIOBase):
    """stdout, without the blanks that fill cells up to the end of a line."""

    def write(self, text: str) -> int:
        sys.stdout.write(re.sub(" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stdout.encoding


def data_console() -> Console:
    """Where results go: stdout, as wide as the terminal, or wide enough for a pipe."""
    is_terminal = sys.stdout.isatty()
    width = None if _has_width(is_terminal) else PIPED_WIDTH
    file = None if is_terminal else cast("IO[str]", _Trimmed())
    return _DataConsole(width=width, file=file)


def write(text: str) -> None:
    """Print a document for programs as it is; to a terminal, with control characters visible."""
    if is_terminal(sys.stdout):
        text = _shown(text)
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise ClosedOutput from None


def is_terminal(stream: TextIO) -> bool:
    """Return whether somebody looks at what is written."""
    return stream.isatty()


def _has_width(is_terminal: bool) -> bool:
    return is_terminal or os.environ.get("COLUMNS", "").isdigit()


def forget_odd_sizes() -> None:
    """Take sizes of a terminal that none has from the environment: rich cannot read them."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch(r"\d{0,4}", os.environ.get(name, ""), re.ASCII):
            del os.environ[name]


def spare_letters(*streams: TextIO) -> None:
    """Have streams whose encoding lacks the letters of bars and dashes write plain ones instead."""
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
    """Where words about the work go: stderr, never broken into lines but on a terminal."""
    return _Console(stderr=True, soft_wrap=True, highlight=False)


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
    """Lines about the work; only where somebody watches, or `always`."""
    console = word_console()
    if text and (always or console.is_terminal):
        for line in text.expandtabs().split("\n"):
            console.print(Text(line))


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
    command = " ".join(_quoted(str(word)) for word in then)
    console.print(Text.assemble("next  ", (command, "bold cyan")))


def _quoted(word: str) -> str:
    """A word as a shell takes it, in letters that can be seen."""
    if word.isprintable():
        return shlex.quote(word)
    letters = (
        letter if letter.isprintable() and letter not in "'\\" else _hexadecimal(letter)
        for letter in word
    )
    return f"$'{''.join(letters)}'"


def _hexadecimal(letter: str) -> str:
    is_byte = "\udc80" <= letter <= "\udcff"  # of a file name that is not in UTF-8
    encoded = os.fsencode(letter) if is_byte else letter.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in encoded)


def fail(error: CommtraceError) -> None:
    """Say what went wrong."""
    first, *rest = str(error).split("\n")
    console = word_console()
    console.print(Text.assemble(("error: ", "bold red"), first))
    for line in rest:
        console.print(Text(line))


def check_output(path: Path, *, force: bool, read: Sequence[Path] = ()) -> None:
    """Refuse an output that cannot or should not be written, before any work is done.

    `read` are the files and folders that the command reads, which it does not overwrite.
    """
    check_writable(path)
    if not path.exists():
        return
    if not force:
        raise UsageError(
            f"cannot write {path}",
            found="a file of that name",
            why="nothing is overwritten unasked",
            attempt="another -o, or --force to overwrite it",
        )
    if any(_is_part_of(path, source) for source in read):
        raise UsageError(
            f"cannot write {path}",
            found="a file that this command reads",
            why="no command overwrites its own input",
            attempt="another -o",
        )


def _is_part_of(path: Path, source: Path) -> bool:
    if not source.exists():
        return False
    return path.samefile(source) or (source.is_dir() and path.resolve().parent.samefile(source))
