"""Invisible characters are shown as escapes."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from commtrace.errors import RankError, UsageError
from commtrace.escaping import visible, visible_value

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Control, format (bidirectional, zero width) and surrogate characters, and line separators."""


def test_every_control_format_and_separator_character_becomes_an_escape() -> None:
    left = [
        f"U+{code:04X}"
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in UNSEEN and chr(code) in visible(chr(code))
    ]
    assert left == []


@pytest.mark.parametrize("text", ["layers.0.attention", "größe µ 层", "a b", "[red]:smile:", ""])
def test_text_that_can_be_seen_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_escapes_are_those_of_python() -> None:
    assert visible("\x1b]0;x\x07\u202e\n\U000e0041\ud800") == (
        r"\x1b]0;x\x07\u202e\n\U000e0041\ud800"
    )


def test_making_visible_twice_changes_nothing() -> None:
    assert visible(visible("a\x1bb")) == visible("a\x1bb")


def test_what_is_kept_stays() -> None:
    assert visible("a\nb\tc\r", keep="\n") == "a\nb\\tc\\r"


def test_of_a_template_s_values_only_texts_are_changed() -> None:
    assert visible_value(3) == 3
    assert visible_value("a\x1b\nb") == "a\\x1b\nb"


def test_an_error_shows_hostile_names_in_lines_of_their_own_part() -> None:
    error = UsageError("cannot read \x1b[2J\nerror: all is well", found="one\n\x9btwo")
    assert str(error) == (
        "cannot read \\x1b[2J\\nerror: all is well\n  found: one\n         \\x9btwo"
    )


def test_a_rank_s_traceback_is_shown_without_control_characters() -> None:
    error = RankError("f failed", rank=0, traceback="line\n\tValueError: \x1b[0m", found="")
    assert str(error) == "f failed\nline\n\tValueError: \\x1b[0m"
