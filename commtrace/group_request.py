"""Text of an event of kind `new_group`: the group that a rank asked for.

    ranks=0,1,4-7 backend=gloo name=3       members, backend if given, name once it is created
    ranks=all                               all ranks, and the call has not ended
    ranks=0,1 raised=DistBackendError       it failed

A rank that is no member gets no group, and its text has no name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commtrace.schema import MAX_RANKS

_ALL = "all"


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """Process group that a rank asks for.

    Attributes:
        ranks: global ranks as given; None for all.
        backend: as given; empty if it was not.
        name: name of the group; empty before it is created, and on ranks that are no members.
        raised: type of the exception by which the call ended; empty if none.
    """

    ranks: tuple[int, ...] | None
    backend: str = ""
    name: str = ""
    raised: str = ""


def text_of_request(request: GroupRequest) -> str:
    """Return the text of an event.

    >>> text_of_request(GroupRequest((0, 1, 4, 5, 6, 7), "gloo", "3"))
    'ranks=0,1,4-7 backend=gloo name=3'
    """
    members = _ALL if request.ranks is None else _text_of_members(request.ranks)
    others = (("backend", request.backend), ("name", request.name), ("raised", request.raised))
    return " ".join([f"ranks={members}", *(f"{name}={value}" for name, value in others if value)])


def parsed_request(text: str) -> GroupRequest | None:
    """Return the request in an event's text; None if it has none.

    >>> parsed_request("ranks=0,1,4-7 name=3").ranks
    (0, 1, 4, 5, 6, 7)
    """
    pairs = [word.partition("=") for word in text.split(" ")]
    words: dict[str, str] = {name: value for name, _, value in pairs}
    try:
        members = words.pop("ranks")
        ranks = None if members == _ALL else _members_in(members)
        return GroupRequest(ranks, **words)
    except (KeyError, TypeError, ValueError):
        return None


def _text_of_members(ranks: Sequence[int]) -> str:
    """Return ranks in their order, with runs of three and more as `first-last`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )


def _members_in(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        end = int(last or first) + 1
        if end > MAX_RANKS:
            raise ValueError(f"rank {end - 1}")
        found += range(int(first), end)
    return tuple(found)
