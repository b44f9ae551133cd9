"""Random programs and changes: a changed run takes as long as the changed program."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.graph import replayed
from commtrace.analyze.whatif.asked import what_if
from tests.commtrace.analyze.replay.simulated import (
    Call,
    Program,
    Step,
    Use,
    Wait,
    Work,
    simulated,
    step_ns,
)

NUM_PROGRAMS = 60
Change = Callable[[int, Any], Any]


def made_by(seed: int) -> list[Program]:
    """The programs of two to five ranks: five steps of calls, work, waits and uses."""
    chance = random.Random(seed)
    num_ranks, num_calls = chance.randint(2, 5), chance.randint(1, 6)
    template = [
        (chance.choice(["blocks", "waits", "uses"]), chance.randint(0, 200), chance.randint(0, 80))
        for _ in range(num_calls)
    ]
    template[0] = ("blocks", *template[0][1:])
    programs = []
    for _ in range(num_ranks):
        instructions: list[Any] = []
        for number in range(5):
            instructions += [Step(), Work(chance.randint(1, 50))]
            for line, (sort, transfer, between) in enumerate(template):
                name = f"{number}.{line}"
                issue = None if sort != "waits" else 3
                instructions.append(Call(name, transfer, issue=issue, line=line))
                instructions.append(Work(1 + between + chance.randint(0, 60)))
                if sort == "waits":
                    instructions.append(Wait(name))
                instructions += [Use(name), Work(chance.randint(1, 40))]
        programs.append(instructions)
    return programs


def with_each(programs: Sequence[Program], change: Change) -> list[Program]:
    changed = []
    for rank, program in enumerate(programs):
        found: list[Any] = []
        for each in program:
            new = change(rank, each)
            found += new if isinstance(new, list) else [new]
        changed.append(found)
    return changed


def removed(line: int) -> Change:
    def change(_: int, each: Any) -> Any:
        name = getattr(each, "name", "")
        return [] if name.endswith(f".{line}") and not isinstance(each, (Step, Work)) else each

    return change


def shrunk(line: int) -> Change:
    def change(_: int, each: Any) -> Any:
        is_it = isinstance(each, Call) and each.line == line
        return replace(each, transfer=each.transfer * 3) if is_it else each

    return change


def slower(of_rank: int) -> Change:
    def change(rank: int, each: Any) -> Any:
        is_it = isinstance(each, Work) and rank == of_rank
        return replace(each, lasts=each.lasts * 2) if is_it else each

    return change


def asynchronous(line: int, issue: int) -> Change:
    def change(_: int, each: Any) -> Any:
        if isinstance(each, Call) and each.line == line and each.issue is None:
            return replace(each, issue=issue)
        if isinstance(each, Use) and each.name.endswith(f".{line}"):
            return [Wait(each.name), each]
        return each

    return change


def with_change(chance: random.Random, num_calls: int, num_ranks: int) -> tuple[str, Change]:
    line, rank = chance.randrange(num_calls), chance.randrange(num_ranks)
    return chance.choice(
        [
            (f"remove where source_line={line}", removed(line)),
            (f"shrink *3 where source_line={line}", shrunk(line)),
            (f"compute *2 where rank={rank}", slower(rank)),
        ]
    )


@pytest.mark.parametrize("seed", range(NUM_PROGRAMS))
def test_a_changed_run_takes_as_long_as_the_changed_program(seed: int) -> None:
    chance, programs = random.Random(-seed), made_by(seed)
    run = load(simulated(programs))
    graph = work_graph(run)
    assert (replayed(graph).time == graph.points.at).all()
    lines = {each.line for each in programs[0] if isinstance(each, Call)}
    texts, changed = [], programs
    for _ in range(chance.randint(1, 2)):
        text, change = with_change(chance, len(lines), len(programs))
        if text.startswith("remove") and any(
            each.startswith(("remove", "shrink")) for each in texts
        ):
            continue  # a call that is removed cannot change any more
        if text.startswith("shrink") and any(each.startswith("remove") for each in texts):
            continue
        texts.append(text)
        changed = with_each(changed, change)
    answer = what_if(run, texts)
    assert answer.after == (step_ns(changed), step_ns(changed)), texts


@pytest.mark.parametrize("seed", range(NUM_PROGRAMS))
def test_calls_that_no_longer_block_are_waited_for_where_they_are_used(seed: int) -> None:
    programs = made_by(seed)
    calls = [each for each in programs[0] if isinstance(each, Call)]
    blocking = {each.line for each in calls if each.issue is None}
    line = min(blocking)
    answer = what_if(load(simulated(programs)), [f"async where source_line={line}"])
    # Issuing takes as long as for the asynchronous calls of the run.
    issue = 3 if len(blocking) < len({each.line for each in calls}) else 0
    assert answer.after[1] == step_ns(with_each(programs, asynchronous(line, issue)))
