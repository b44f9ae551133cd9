from __future__ import annotations

from commtrace.figures.label import LONGEST, MOST_LINES, WIDTH, lines, plain, wrapped


def test_a_name_cannot_be_markup() -> None:
    hostile = "<a href='x'>&lt;b&gt;</a>\n"
    assert plain(hostile) == "&lt;a href='x'&gt;&amp;lt;b&amp;gt;&lt;/a&gt; "


def test_a_name_that_never_ends_loses_its_middle() -> None:
    cut = plain("a" * 1000 + "z")
    assert len(cut) == LONGEST
    assert cut.startswith("aaa")
    assert cut.endswith("z")
    assert plain("a" * LONGEST) == "a" * LONGEST


def test_truncation_never_splits_an_escape_of_one_character() -> None:
    assert plain("<" * 1000) == "&lt;" * 79 + "…" + "&lt;" * 80


def test_a_sentence_is_broken_into_lines() -> None:
    text = wrapped("word " * 100)
    assert all(len(line) <= WIDTH for line in text.split("<br>"))
    assert text.replace("<br>", " ").split() == ["word"] * 100
    assert wrapped("x" * 10_000).count("<br>") == MOST_LINES - 1
    assert wrapped("<br>") == "&lt;br&gt;"


def test_empty_lines_are_left_out() -> None:
    assert lines(["a", "", "b"]) == "a<br>b"
