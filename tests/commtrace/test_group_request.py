"""The text of a request for a group is read back."""

from __future__ import annotations

import pytest

from commtrace.group_request import GroupRequest, parsed_request, text_of_request


@pytest.mark.parametrize(
    ("request_made", "text"),
    [
        (GroupRequest(None), "ranks=all"),
        (GroupRequest((0, 1), "gloo", "3"), "ranks=0,1 backend=gloo name=3"),
        (GroupRequest((5, 0, 1, 2), "cpu:gloo"), "ranks=5,0-2 backend=cpu:gloo"),
        (GroupRequest((3,), raised="ValueError"), "ranks=3 raised=ValueError"),
        (GroupRequest((), name="7"), "ranks= name=7"),
    ],
)  # fmt: skip
def test_a_request_survives_its_text(request_made: GroupRequest, text: str) -> None:
    assert text_of_request(request_made) == text
    assert parsed_request(text) == request_made


@pytest.mark.parametrize(
    "text", ["", "the batch is empty", "ranks=a", "ranks=0-9999999", "ranks=0 size=2"]
)
def test_another_text_is_no_request(text: str) -> None:
    assert parsed_request(text) is None
