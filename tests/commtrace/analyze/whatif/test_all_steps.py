"""Changes in all steps of a large run, block by block, against the run in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from commtrace.analyze.findings import findings
from commtrace.analyze.replay import basis
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.whatif.asked import what_if
from commtrace.errors import UsageError
from tests.commtrace.analyze.replay.simulated import MS, Call, Step, Work, simulated
from tests.commtrace.report.test_page_of_stored_run import stored_run

NUM_STEPS = 21
OF_A_BLOCK = 5
EDGES = 0.2
"""Part of what is at edges of blocks, which begin and end as they were recorded."""
EVERY = 4
"""Every so many steps there is an all-gather, whose block has another step or two."""


def of_step(rank: int, number: int) -> Sequence[Any]:
    often = [Call(f"often{number}", 20, "all_gather", line=7)] if number % EVERY == 0 else []
    return [
        Step(),
        Work(100 + 40 * rank),
        Call(f"sum{number}", 30, line=5),
        *often,
        Call(f"barrier{number}", 10, "barrier", line=6),
        Work(50),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Frames, Frames]]:
    """The run, stored so that a block has five steps, and in memory."""
    programs = [[each for n in range(NUM_STEPS) for each in of_step(rank, n)] for rank in range(2)]
    folder = tmp_path_factory.mktemp("stored") / "RUN.comm"
    stored, whole = stored_run(simulated(programs), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basis, "MOST_CALLS", OF_A_BLOCK * whole.num_calls // NUM_STEPS)
        yield stored, whole


CHANGES = [
    ["remove where kind=all_gather"],
    ["remove where source_line=5"],
    ["bandwidth *2"],
    ["balance", "remove where kind=all_gather"],
    ["compute *0.5 where rank=1"],
]


@pytest.mark.parametrize("changes", CHANGES, ids="; ".join)
def test_blocks_have_the_steps_of_the_run_in_memory(
    runs: tuple[Frames, Frames], changes: list[str]
) -> None:
    stored, whole = runs
    found, expected = what_if(stored, changes, all_steps=True), what_if(whole, changes)
    assert found.before.num_steps == NUM_STEPS
    assert found.before.step_ns == pytest.approx(expected.before.step_ns, abs=MS)
    assert found.after == pytest.approx(expected.after, abs=MS)
    assert found.num_changed == pytest.approx(expected.num_changed, rel=EDGES)
    assert found.num_dependencies == pytest.approx(expected.num_dependencies, rel=EDGES)
    for own, of_whole in zip(found.lengths, expected.lengths, strict=True):
        assert own.index.tolist() == of_whole.index.tolist()
        assert ((own - of_whole).abs() > MS).mean() <= 2 * EDGES
    sums, others = (
        each.effects().groupby("of")[["before_ns", "after_ns"]].sum() for each in (found, expected)
    )
    work, of_whole = found.time_by_work(), expected.time_by_work()
    assert work.sum() == pytest.approx(of_whole.sum(), rel=EDGES)
    assert work.index[0] == of_whole.index[0]
    differs = (sums - others).abs().max(axis=1)
    assert (differs <= EDGES * others.max(axis=1)).all()


def test_what_no_block_has_is_an_error(runs: tuple[Frames, Frames]) -> None:
    stored, _ = runs
    with pytest.raises(UsageError, match="is of nothing in this run"):
        what_if(stored, ["remove where kind=broadcast"], all_steps=True)
    with pytest.raises(UsageError, match="cannot return the replayed run"):
        _ = what_if(stored, ["remove"], all_steps=True).run


def test_a_run_in_memory_is_one_block(runs: tuple[Frames, Frames]) -> None:
    _, whole = runs
    one, same = (what_if(whole, ["balance"], all_steps=each) for each in (True, False))
    assert one.after == same.after
    assert len(one.run.comm) == len(whole.comm)


def test_findings_name_calls_in_all_blocks(runs: tuple[Frames, Frames]) -> None:
    stored, whole = runs
    texts = [text for text in findings(whole)["change"] if text]
    assert texts
    for text in texts:
        found, expected = what_if(stored, [text], all_steps=True), what_if(whole, [text])
        assert found.num_changed == pytest.approx(expected.num_changed, rel=EDGES)
