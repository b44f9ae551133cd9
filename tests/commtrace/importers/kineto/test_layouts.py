"""Traces of every layout: imported, read by a second parser, and compared with what happened."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.importers import import_trace
from tests.commtrace.importers.kineto.layouts import ANNOTATION, BASE_NS, LAYOUTS, NAMES, OPERATOR
from tests.commtrace.importers.kineto.profiles import Profile, write_profiles
from tests.commtrace.importers.kineto.programs import Program, Row
from tests.commtrace.importers.kineto.rank_traces import ENGINE, MAIN
from tests.commtrace.importers.kineto.second_parser import calls_of, overlap_of, read, with_groups

CASES = [(name, seed) for name in LAYOUTS for seed in (1, 2)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Program, Path]:
    name, seed = request.param
    world_size = 64 if name in ("2025", "2026") else 4
    program = Program(seed, LAYOUTS[name], world_size=world_size)
    return program, program.write(tmp_path_factory.mktemp("traces"), zipped=seed == 2)


@pytest.fixture(scope="module")
def frames(written: tuple[Program, Path]) -> Frames:
    return load(import_trace([written[1]]))


def imported_rows(frames: Frames) -> list[Row]:
    """The calls with a kernel, as rows of the truth."""
    ranks = {row["name"]: row["ranks"] for row in frames.groups.to_dict("records")}
    rows = []
    for call in frames.comm.to_dict("records"):
        listed = ranks.get(call["group"]) or ""
        group = tuple(map(int, listed.split(","))) if listed else ()
        rows.append(
            Row(call["rank"], call["issue_ns"], call["complete_ns"], call["kind"], group,
                call["payload_bytes"], call["stream"], call["step"], call["input_splits"])
        )  # fmt: skip
    return rows


def test_every_communication_kernel_is_a_timed_call_of_its_kind_size_and_group(
    written: tuple[Program, Path], frames: Frames
) -> None:
    assert differences(imported_rows(frames), written[0].rows) == ([], [])


def differences(found: list[Row], expected: list[Row]) -> tuple[list[Row], list[Row]]:
    """Rows that are too many, and rows that are missing."""
    more, less = Counter(found), Counter(expected)
    return sorted((more - less).elements()), sorted((less - more).elements())


def test_the_second_parser_finds_the_same(written: tuple[Program, Path]) -> None:
    program, folder = written
    ranks = [calls_of(read(path)) for path in sorted(folder.iterdir())]
    if not program.layout.has_groups:
        with_groups(ranks)
    found = [
        Row(call.rank, call.start_ns, call.end_ns, call.kind, call.group, call.payload_bytes,
            call.stream, call.step)
        for calls in ranks
        for call in calls
    ]  # fmt: skip
    without_splits = [Row(*_fields(row)[:-1]) for row in program.rows]
    assert differences(found, without_splits) == ([], [])


def _fields(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in Row.__slots__)


def test_overlap_is_that_of_the_kernels(written: tuple[Program, Path], frames: Frames) -> None:
    table = CATALOG["overlap"].function(frames).set_index(["rank", "step"])
    for path in sorted(written[1].iterdir()):
        file = read(path)
        found = overlap_of(file)
        assert found == written[0].overlap(file.rank)
        for step, (total, exposed) in found.items():
            row = table.loc[(file.rank, step)]
            columns = ("communication_ns", "exposed_ns", "overlapped_ns", "unknown_ns")
            assert [row[name] for name in columns] == [total, exposed, total - exposed, 0]


def test_members_of_a_group_have_the_same_numbers_for_the_same_collectives(
    written: tuple[Program, Path], frames: Frames
) -> None:
    comm = frames.comm[frames.comm["seq"] >= 0]
    ends = comm.groupby(["group", "seq"], observed=True)["complete_ns"]
    assert ((ends.max() - ends.min()) < 10_000).all()
    numbered = set(zip(comm["rank"], comm["complete_ns"], strict=True))
    for row in written[0].rows:
        if row.group and row.kind not in ("send", "recv") and set(row.group) <= {0, 1, 2, 3}:
            assert (row.rank, row.end_ns) in numbered


def test_each_communication_kernel_is_linked_to_its_call(
    written: tuple[Program, Path], frames: Frames
) -> None:
    kernels = frames.kernels[frames.kernels["category"] == "communication"]
    assert len(kernels) == sum(kernel.communicates for kernel in written[0].kernels)
    calls = frames.comm.set_index(["rank", "id"])
    for kernel in kernels.to_dict("records"):
        call = calls.loc[(kernel["rank"], kernel["call_id"])]
        assert call["issue_ns"] == kernel["start_ns"]
        assert call["complete_ns"] == kernel["start_ns"] + kernel["duration_ns"]
        assert call["stream"] == kernel["stream"]
    said = f"{len(kernels)} communication kernels, by "
    assert frames.run["kernels"].startswith(said)


def test_computation_is_that_of_the_program(written: tuple[Program, Path], frames: Frames) -> None:
    kernels = frames.kernels[frames.kernels["category"] == "compute"]
    found = zip(
        kernels["rank"], kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"],
        strict=True,
    )  # fmt: skip
    computing = [each for each in written[0].kernels if not each.communicates]
    assert sorted(found) == sorted((each.rank, each.start_ns, each.end_ns) for each in computing)


@pytest.mark.parametrize("category", [ANNOTATION, OPERATOR])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_work_of_gloo_on_threads_of_its_own_belongs_to_the_calls(
    seed: int, category: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    profile, truth, free = Profile(0), [], [0.0, 0.0]
    for number in range(20):
        kind = chance.choice(["all_reduce", "all_gather", "broadcast"])
        issue = 50.0 * number
        size = chance.randrange(1, 100)
        shapes = {"Input Dims": [[[size]], []], "Input type": ["float", ""]}
        name = f"c10d::{NAMES[kind].operator}"
        if kind == "all_gather":
            shapes["Input Dims"] = [[2 * size], [size]]
        profile.span(name, OPERATOR, issue, 9, chance.choice([MAIN, ENGINE]), **shapes)
        worker = free.index(min(free))
        begin = max(issue + 5, *free[worker : worker + 1])
        free[worker] = end = begin + chance.randrange(3, 200)
        noted = {"Input Dims": [[size]], "Input type": ["float"]}
        profile.span(f"gloo:{kind}", category, begin, end - begin, 70 + worker, **noted)
        truth.append((kind, issue, end, 4 * size * (2 if kind == "all_gather" else 1)))
    frames = load(import_trace([write_profiles(tmp_path, [profile])]))
    found = [
        (call["kind"], (call["issue_ns"] - BASE_NS) / 1000, (call["complete_ns"] - BASE_NS) / 1000,
         call["payload_bytes"])
        for call in frames.comm.to_dict("records")
    ]  # fmt: skip
    assert found == truth
    assert (frames.comm["stream"] == -1).all()
