"""Calls that a ring has replaced are compared by their hashes."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Sequence
from itertools import count

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.divergence.earlier import made_alike
from commtrace.call_hash import added, hash_of_call, hash_of_place
from commtrace.event import CommEvent, GroupRow
from commtrace.tracefile import SegmentedWriter, join, joined_segments, parse_spool, sites_of
from commtrace.tracefile.spool import NUMBERS, SITES
from tests.commtrace.synthetic import START_NS, synthetic_facts

SITE_COLUMNS = [column.name for column in SITES["comm"]]
NUMBER_COLUMNS = [column.name for column in NUMBERS["comm"]][:-1]
GROUPS = [GroupRow("g", "", "0,1", 2, "", "gloo"), GroupRow("h", "", "0,1", 2, "", "gloo")]


class File(io.BytesIO):
    """A file whose contents stay when it is closed."""

    def close(self) -> None:
        """Do nothing."""


def segments_of(
    rank: int, lines: Sequence[int], of_segment: int, order: Sequence[int] | None = None
) -> list[bytes]:
    """Record calls of a rank from lines of a file, `of_segment` of them in each segment.

    Args:
        rank: The rank.
        lines: Line of each call.
        of_segment: Number of calls in a batch; each batch begins a segment.
        order: Numbers of the calls in the order in which they complete.
    """
    files = [File()]
    clock = count(START_NS)

    def begun(number: int) -> File:
        files.append(File())
        assert number == len(files) - 1
        return files[-1]

    writer = SegmentedWriter(
        files[0], synthetic_facts(rank, 2), segment_bytes=1, open_segment=begun,
        clock=lambda: next(clock),
    )  # fmt: skip
    places: dict[int, int] = {}
    numbers = order or range(len(lines))
    for first in range(0, len(lines), of_segment):
        sites, flat = [], []
        for number in numbers[first : first + of_segment]:
            line = lines[number]
            if line not in places:
                row = CommEvent(rank=rank, kind="all_reduce", group="g", source_line=line)
                sites.append(tuple(getattr(row, name) for name in SITE_COLUMNS))
                places[line] = len(places)
            at = START_NS + 1000 * number
            event = CommEvent(rank=rank, id=number, seq=number, issue_ns=at, complete_ns=at + 1)
            flat += [*(getattr(event, name) for name in NUMBER_COLUMNS), places[line]]
        tables = {sites_of("comm"): sites, "groups": [] if first else GROUPS}
        writer.write(tables, numbers={"comm": flat})
    end = {"complete": True, "end_ns": START_NS + 1000 * len(lines), "num_dropped": 0}
    writer.write({}, end)
    return [file.getvalue() for file in files]


def run(*files: Iterable[bytes]) -> Frames:
    """The segments of several ranks as a run."""
    return load(join(joined_segments([parse_spool(file) for of_rank in files for file in of_rank])))


def alike(frames: Frames, group: str = "g") -> tuple[bool | None, int]:
    return made_alike(frames, calls_of_ranks(frames, [0, 1]), (1, 0), group)


def test_ranks_whose_rings_begin_elsewhere_are_compared() -> None:
    lines = [number % 7 for number in range(60)]
    one, other = segments_of(0, lines, 4), segments_of(1, lines, 6)
    frames = run(one[-3:], other[-3:])
    assert frames.removed_calls[["rank", "num_calls", "end"]].to_numpy().tolist() == [
        [0, 52, 52],
        [1, 48, 48],
    ]
    assert alike(frames) == (True, 52)
    assert alike(frames, "h") == (None, 0)


@pytest.mark.parametrize("place", [0, 3, 47])
def test_a_call_from_another_line_is_seen_though_it_is_gone(place: int) -> None:
    lines = [number % 7 for number in range(60)]
    others = [*lines[:place], 99, *lines[place + 1 :]]
    assert alike(run(segments_of(0, lines, 4)[-3:], segments_of(1, others, 6)[-3:])) == (False, 52)


def test_two_calls_that_were_swapped_are_seen() -> None:
    lines = list(range(60))
    others = [1, 0, *lines[2:]]
    assert alike(run(segments_of(0, lines, 4)[-3:], segments_of(1, others, 4)[-3:])) == (False, 52)


def test_the_order_of_completion_does_not_matter() -> None:
    lines = [number % 5 for number in range(40)]
    order = list(range(40))
    random.Random(3).shuffle(order)
    one, other = segments_of(0, lines, 4), segments_of(1, lines, 4, order)
    frames = run(one, other[-3:])
    # Those that complete late have high numbers and are kept, or low ones and are kept, too.
    assert alike(frames) == (True, int(frames.removed_calls["end"].max()))


def test_what_a_lost_segment_had_is_unknown() -> None:
    lines = [number % 5 for number in range(40)]
    one, other = segments_of(0, lines, 4), segments_of(1, lines, 4)
    assert alike(run(one[-4:], other[-3:])) == (True, 32)
    assert alike(run(one[-2:], [other[-4], *other[-2:]])) == (None, 36)


def test_the_divergence_states_if_the_ranks_had_parted_before() -> None:
    lines = [number % 7 for number in range(60)]
    for place, text in (
        (None, "Alike in the first 52 calls"),
        (5, "They had parted within the first 52 calls"),
    ):
        others = lines if place is None else [*lines[:place], 99, *lines[place + 1 :]]
        frames = run(segments_of(0, lines, 4)[-3:], segments_of(1, others[:56], 4)[-3:])
        (row,) = CATALOG["divergences"].function(frames).to_dict("records")
        assert row["explanation"].startswith(text)


def test_a_hash_depends_on_place_and_number_alone() -> None:
    places = [hash_of_place(("all_reduce", "", "", "a.py", line, "f")) for line in range(50)]
    calls = {hash_of_call(place, number) for place in places for number in range(50)}
    assert len({*places}) == 50
    assert len(calls) == 2500
    assert all(0 <= each < 1 << 62 for each in [*places, *calls])
    assert added(places[0], places[1]) == added(places[1], places[0])
