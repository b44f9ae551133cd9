"""Dumps of every kind of fault, in the layout of each release and for worlds of 2 to 64 ranks.

The dumps are made of a healthy program with a single fault, so that the answer is known by
construction.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.dumps import ALL, LEFT, Dump, write_dumps

NUM_BEFORE = 3
"""Collectives of all ranks before the fault."""
AT = NUM_BEFORE + 1
Answer = tuple[str, str]
Make = Callable[[list[Dump], int], Answer | None]


def world(num_ranks: int, torch: str) -> list[Dump]:
    """Ranks that have completed some collectives, in two groups of all of them."""
    groups = {ALL: [*range(num_ranks)], LEFT: [*range(num_ranks)]}
    dumps = [Dump(rank, ranks=groups, torch=torch) for rank in range(num_ranks)]
    for dump in dumps:
        for name in ("broadcast", "all_reduce", "all_reduce"):
            dump.call(name).call(name, LEFT)
    return dumps


def blamed(dumps: list[Dump], culprit: int) -> str:
    """The culprit, or both ranks if there are two."""
    return str(culprit) if len(dumps) > 2 else "0,1"


def healthy(dumps: list[Dump], culprit: int) -> Answer | None:
    return None


def missing(dumps: list[Dump], culprit: int) -> Answer:
    for dump in dumps:
        if dump.rank != culprit:
            dump.call("all_reduce", state="started")
    return "missing call", blamed(dumps, culprit)


def extra(dumps: list[Dump], culprit: int) -> Answer:
    dumps[culprit].call("all_reduce", state="started")
    # The others may be held up elsewhere: a dump does not show it.
    return ("extra call", "") if len(dumps) > 2 else ("missing call", "0,1")


def differing(**fields: Any) -> Make:
    """The culprit's call has other properties: the first is the name of the problem."""

    def make(dumps: list[Dump], culprit: int) -> Answer:
        for dump in dumps:
            own = {"name": "all_gather", "state": "started"} | (
                fields if dump.rank == culprit else {}
            )
            dump.call(own.pop("name"), **own)
        problem = {"name": "kind", "sizes": "size", "dtype": "dtype"}[next(iter(fields))]
        return problem, blamed(dumps, culprit)

    return make


def in_flight(dumps: list[Dump], culprit: int) -> Answer:
    for dump in dumps:
        dump.call("all_reduce", state="started")
    return "in flight", ""


def device_behind(dumps: list[Dump], culprit: int) -> Answer:
    for dump in dumps:
        state = "started" if dump.rank == culprit else "completed"
        dump.call("all_reduce", state=state).call("all_reduce", state="started")
    return "in flight", str(culprit) if len(dumps) > 2 else ""


def crossed(dumps: list[Dump], culprit: int) -> Answer:
    for dump in dumps:
        groups = (LEFT, ALL) if dump.rank == culprit else (ALL, LEFT)
        for place, group in enumerate(groups):
            dump.call("all_reduce", group, state="scheduled" if place else "started")
    return "order", str(culprit) if len(dumps) > 2 else ""


FAULTS: dict[str, Make] = {
    "healthy": healthy,
    "missing": missing,
    "extra": extra,
    "kind": differing(name="all_reduce"),
    "size": differing(sizes=((8, 17),)),
    "dtype": differing(dtype="Half"),
    "in flight": in_flight,
    "device behind": device_behind,
    "crossed": crossed,
}
OF_ACTIVE = [name for name in FAULTS if name not in ("healthy", "device behind")]
RELEASES = ("2.4", "2.5", "2.6", "2.8", "2.13", "later")
SIZES = (2, 3, 8, 64)


def findings(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the faults of dumps, and the findings on them."""
    frames = load(import_trace([folder]))
    rows = CATALOG["consistency"].function(frames)
    hangs = CATALOG["findings"].function(frames)
    return (
        rows[rows["is_fault"]].to_dict("records"),
        hangs[hangs["rule"] == "hang"].to_dict("records"),
    )


def expect(folder: Path, answer: Answer | None) -> None:
    """Compare the first result with the answer; a hang is a finding, too."""
    faults, hangs = findings(folder)
    assert [(row["problem"], row["ranks"]) for row in faults[:1]] == ([answer] if answer else [])
    assert [each["title"] for each in hangs[:1]] == [row["explanation"] for row in faults[:1]]
    for row in faults[:1]:
        assert row["number"] == AT  # the SeqNum of the watchdog
        is_one_of_both = row["is_one_of_ranks"]
        assert is_one_of_both == ("," in row["ranks"])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("torch", RELEASES)
def test_a_fault_is_found_and_its_rank(fault: str, torch: str, tmp_path: Path) -> None:
    size = SIZES[(RELEASES.index(torch) + [*FAULTS].index(fault)) % len(SIZES)]
    dumps = world(size, torch)
    answer = FAULTS[fault](dumps, (size - 1) // 2)
    expect(write_dumps(tmp_path, dumps), answer)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", OF_ACTIVE)
def test_a_fault_is_found_in_dumps_of_calls_in_flight(
    fault: str, size: int, tmp_path: Path
) -> None:
    dumps = world(size, "2.13")
    answer = FAULTS[fault](dumps, size - 1)
    expect(write_dumps(tmp_path, dumps, only_active=True), answer)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", ["healthy", "missing", "extra", "in flight", "device behind"])
def test_the_status_proves_a_fault_if_dumps_list_no_call(
    fault: str, size: int, tmp_path: Path
) -> None:
    """Nobody is blamed for an extra call, and no device, since calls may be transfers."""
    dumps = world(size, "2.13")
    answer = FAULTS[fault](dumps, size // 2)
    faults, _ = findings(write_dumps(tmp_path, dumps, collectives=False))
    if answer is not None:
        problem, ranks = answer
        is_unsure = fault in ("extra", "device behind") and size > 2
        answer = problem.replace("in flight", "hanging call"), "" if is_unsure else ranks
    assert [(row["problem"], row["ranks"]) for row in faults] == ([answer] if answer else [])
    if faults:
        assert faults[0]["number"] == AT


def split(num_ranks: int, wrong: tuple[int, int] | None) -> list[Dump]:
    """All-to-alls with split sizes: rank r sends r + 1 elements to each; one expects others."""
    dumps = world(num_ranks, "later")
    for dump in dumps:
        sent = [dump.rank + 1] * num_ranks
        received = [rank + 1 for rank in range(num_ranks)]
        if wrong is not None and dump.rank == wrong[0]:
            received[wrong[1]] += 3
        dump.call("all_to_allv", sizes=[[sum(sent)]], out=[[sum(received)]], state="started")
        dump.entries[-1].update(input_split_sizes=sent, output_split_sizes=received)
    return dumps


@pytest.mark.parametrize("size", SIZES)
def test_split_sizes_that_fit_are_no_fault(size: int, tmp_path: Path) -> None:
    faults, _ = findings(write_dumps(tmp_path, split(size, None)))
    assert [row["problem"] for row in faults] == ["in flight"]


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_expects_other_splits_than_are_sent_is_named(size: int, tmp_path: Path) -> None:
    faults, _ = findings(write_dumps(tmp_path, split(size, (size - 1, 0))))
    assert (faults[0]["problem"], faults[0]["number"]) == ("size", AT)
    assert f"rank {size - 1}" in faults[0]["explanation"]
    assert "rank 0" in faults[0]["explanation"]
