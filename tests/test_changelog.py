"""The changelog has versions in order, and complete entries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import commtrace

TEXT = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()


def versions(text: str) -> list[tuple[int, ...]]:
    """The versions of a changelog in the order of their headings."""
    found = re.findall(r"^## (\d+\.\d+\.\d+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", text, re.M)
    assert len(found) == len(re.findall(r"^## ", text, re.M)), "a heading is no version"
    return [tuple(map(int, each.split("."))) for each in found]


def entries(text: str) -> list[str]:
    """The entries of a changelog, each on a single line."""
    return [" ".join(each.split()) for each in re.findall(r"^- (?:.+\n)+?(?=-|\n|\Z)", text, re.M)]


def broken(text: str) -> list[str]:
    """Entries that do not end with a sentence or a link, or that are duplicates."""
    found = entries(text)
    doubled = {each for each in found if found.count(each) > 1}
    return [each for each in found if each in doubled or not each.endswith((".", ")", "`."))]


def test_versions_descend_to_the_first_and_begin_with_this_one() -> None:
    found = versions(TEXT)
    assert found == sorted(set(found), reverse=True)
    assert found[0] == tuple(int(each) for each in commtrace.__version__.split(".")[:3])


def test_every_entry_is_whole_and_there_once() -> None:
    assert len(entries(TEXT)) > 40
    assert broken(TEXT) == []


@pytest.mark.parametrize("text", ["- It breaks off\n  in the middle\n- Next.\n", "- A.\n- A.\n"])
def test_a_broken_entry_is_noticed(text: str) -> None:
    assert broken(text)
