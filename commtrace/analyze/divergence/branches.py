"""The branch in a program's source that leads to one line rather than to another.

Only indentation is read, so that excerpts of a file suffice: the headers around a line are the
nearest lines above it that are indented less and less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Lines = Mapping[int, str]
"""Lines of a file by number, from 1; those that are not known are missing."""

_HEADER = re.compile(r"(if|elif|else|for|while|try|except|finally|with|match|case)\b.*:")
_FUNCTION = re.compile(r"(async\s+def|def|class)\b")
_LEAVES = re.compile(r"(break|continue|return|raise)\b")
_ENDS_LOOP = re.compile(r"(break|return|raise)\b")
_WITH_BODY = re.compile(r"(if|elif|else|for|while|except)\b.*:\s*[^\s#]")
_ENDS_ROUND = re.compile(r"continue\b")
_SHORT_EXIT = re.compile(r"if\b.*:.*\b(break|continue|return|raise)\b")
_CONDITIONS = ("if", "elif", "else", "case", "except")
LOOPS = ("for", "while")
_MATCHES = {"else": ("if", "elif", "for", "while", "try", "except"), "elif": ("if", "elif")}
_MOST_LINES = 400


@dataclass(frozen=True, slots=True)
class Branch:
    """A statement that decides whether a line is reached.

    Attributes:
        line: its line.
        text: its text, without indentation.
        keyword: its first word.
    """

    line: int
    text: str
    keyword: str


def branch_between(lines: Lines, common: int, own: int, others: int) -> tuple[Branch, ...]:
    """Return the statements by which one rank came to another line than the others.

    Args:
        lines: Lines of the file.
        common: The last line that all have passed; -1 if unknown.
        own: The line that one rank came to next; -1 if it came to none.
        others: The line that the others came to next; -1 if they came to none.
    """
    around_own = headers_around(lines, own)
    around_others = headers_around(lines, others)
    only_own = [each for each in around_own if each not in around_others]
    only_others = [each for each in around_others if each not in around_own]
    for header in only_own:
        if header.keyword in _CONDITIONS:
            return _with_condition(lines, header)
    for header in only_others:
        if header.keyword in _CONDITIONS:
            return _with_condition(lines, header)
    for header in only_others:
        if header.keyword == "try":
            return (header, *_handlers(lines, header))
    # One rank has left a loop, or an earlier statement has ended what the others go on with.
    loops = [each for each in only_others if each.keyword in LOOPS]
    if not loops and own < 0:
        loops = [each for each in around_others if each.keyword in LOOPS]
    if loops:
        return (loops[0], *_exits(lines, loops[0]))
    if 0 <= common < others:
        exits = tuple(_exits_between(lines, common, others))
        return exits or tuple(_conditions_between(lines, common, others))
    return ()


def line_that_calls(lines: Lines, name: str, after: int) -> int:
    """Return the line that calls a function or a module by name, first behind a line; else -1."""
    call = re.compile(rf"(?<!def )\b{re.escape(name)}\(")
    found = [number for number, text in sorted(lines.items()) if name and call.search(text)]
    return next((number for number in found if number > after), found[0] if found else -1)


def function_around(lines: Lines, line: int) -> dict[int, str]:
    """Return the lines of the function that a line is in; all of them outside of functions."""
    start = next(
        (
            number
            for number in range(line, max(line - _MOST_LINES, 0), -1)
            if _FUNCTION.match(lines.get(number, "").strip())
            and _indent(lines[number]) < _indent(lines.get(line, ""))
        ),
        None,
    )
    if start is None:
        return dict(lines)
    below = [number for number, _ in _below(lines, start, _indent(lines[start]))]
    last = below[-1] if below else start
    return {number: text for number, text in lines.items() if start <= number <= last}


def headers_around(lines: Lines, line: int) -> list[Branch]:
    """Return the statements that a line is in, outermost first, up to its function."""
    found: list[Branch] = []
    own = lines.get(line, "")
    indent = _indent(own)
    if _WITH_BODY.match(own.strip()):
        found.append(_branch(line, own))
    for number in range(line - 1, max(line - _MOST_LINES, 0), -1):
        text = lines.get(number)
        if indent <= 0 or text is None:
            break
        if not text.strip() or text.lstrip().startswith("#") or _indent(text) >= indent:
            continue
        indent, stripped = _indent(text), text.strip()
        if _FUNCTION.match(stripped):
            break
        if _HEADER.match(stripped):
            found.append(_branch(number, text))
    return found[::-1]


def _branch(number: int, text: str) -> Branch:
    stripped = text.strip()
    return Branch(number, stripped, re.split(r"\W", stripped, maxsplit=1)[0])


def _indent(text: str) -> int:
    text = text.expandtabs()
    return len(text) - len(text.lstrip())


def _with_condition(lines: Lines, header: Branch) -> tuple[Branch, ...]:
    """Return a header, after the one that has its condition if it has none of its own."""
    before = _MATCHES.get(header.keyword)
    if before is None:
        return (header,)
    indent = _indent(lines[header.line])
    for number in range(header.line - 1, max(header.line - _MOST_LINES, 0), -1):
        text = lines.get(number)
        if text is None or (text.strip() and _indent(text) < indent):
            break
        if text.strip() and _indent(text) == indent:
            first = _branch(number, text)
            if first.keyword in before:
                return (first, header)
    return (header,)


def _handlers(lines: Lines, header: Branch) -> Iterator[Branch]:
    """Yield the handlers of a `try`."""
    indent = _indent(lines[header.line])
    for number, text in _below(lines, header.line, indent - 1):
        if _indent(text) == indent:
            each = _branch(number, text)
            if each.keyword not in ("except", "else", "finally"):
                return
            if each.keyword == "except":
                yield each


def _below(lines: Lines, line: int, indent: int) -> Iterator[tuple[int, str]]:
    """Yield the lines after one that are indented by more than `indent`, without empty ones."""
    for number in range(line + 1, line + _MOST_LINES):
        text = lines.get(number)
        if text is None:
            return
        if text.strip():
            if _indent(text) <= indent:
                return
            yield number, text


def _exits(lines: Lines, loop: Branch) -> Iterator[Branch]:
    """Yield what leaves a loop from within, or else a round of it, after its condition."""
    below = [*_below(lines, loop.line, _indent(lines[loop.line]))]
    for pattern in (_ENDS_LOOP, _ENDS_ROUND):
        for number, text in below:
            if pattern.match(text.strip()):
                around = [each for each in headers_around(lines, number) if each.line > loop.line]
                yield from around[-1:]
                yield _branch(number, text)
                return


def _exits_between(lines: Lines, first: int, last: int) -> Iterator[Branch]:
    """Yield what may skip the rest on the way from a line to a later one of the same function."""
    indent = _indent(lines.get(last, ""))
    for number in range(first + 1, last):
        text = lines.get(number)
        if text is None or _FUNCTION.match(text.strip()):
            return
        stripped = text.strip()
        if _SHORT_EXIT.match(stripped):
            yield _branch(number, text)
            return
        if _LEAVES.match(stripped) and _indent(text) > indent:
            conditions = headers_around(lines, number)
            if conditions:
                yield conditions[-1]
            yield _branch(number, text)
            return


def _conditions_between(lines: Lines, first: int, last: int) -> Iterator[Branch]:
    """Yield the conditions whose bodies lie between two lines of the same block."""
    indent = _indent(lines.get(last, ""))
    for number in range(first + 1, last):
        text = lines.get(number, "")
        if text.strip() and _indent(text) == indent and re.match(r"if\b.*:", text.strip()):
            yield _branch(number, text)
            return
