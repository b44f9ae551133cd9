"""An error names the request, the place, the finding, the reason, and a remedy."""

from __future__ import annotations

import inspect

import pytest

from commtrace import errors
from commtrace.errors import CommtraceError, TruncatedTraceError


def test_the_text_has_a_line_for_each_part_that_is_given() -> None:
    error = TruncatedTraceError(
        "cannot read the trace run.json",
        place="character 12",
        found="the end of the file",
        why="it was cut off",
        attempt="copy it again",
    )
    assert str(error) == (
        "cannot read the trace run.json\n"
        "  at: character 12\n"
        "  found: the end of the file\n"
        "  why: it was cut off\n"
        "  try: copy it again"
    )


def test_a_part_that_is_not_given_is_left_out() -> None:
    assert str(CommtraceError("cannot", why="because")) == "cannot\n  why: because"


CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == errors.__name__
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_of_the_family_and_ends_the_command_line(cls: type) -> None:
    assert issubclass(cls, CommtraceError)
    assert cls.exit_code != 0  # type: ignore[attr-defined]
