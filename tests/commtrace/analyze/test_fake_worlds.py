"""A fake world has one rank: no other is missing, and its communication takes no known time."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.analyze import CATALOG, Frames, load, notices_of
from commtrace.analyze.consistency import compared, result_of
from commtrace.analyze.story import explain
from commtrace.report.answers import Answers
from commtrace.report.cards import consistency_summary
from commtrace.report.tiles import NOT_KNOWN, answer_tiles, extent
from dtensor_core.testing import fake_world


@pytest.fixture(scope="module")
def frames() -> Frames:
    with fake_world(8), commtrace.record() as recording:
        for _ in range(3):
            dist.all_reduce(torch.ones(64))
            dist.all_reduce(torch.ones(64), async_op=True).wait()
            recording.step()
    return load(recording.trace())


def test_ranks_of_a_fake_world_that_never_existed_are_not_missing(frames: Frames) -> None:
    assert frames.run["missing_ranks"] == []
    assert CATALOG["consistency"].function(frames).empty
    clause = "not compared: a fake world has a single rank", ""
    assert result_of(frames, compared(frames), 0) == clause
    assert explain(frames, frames.comm.iloc[0]).missing_ranks == ()


def test_times_of_a_fake_world_are_unknown(frames: Frames) -> None:
    for name in ("blocked_ns", "complete_ns"):
        assert set(frames.comm[name]) == {-1}, name
    assert CATALOG["by_kind"].function(frames)["blocked_ns"].isna().all()
    assert CATALOG["overlap"].function(frames)["exposed_ns"].isin([-1]).all()
    assert CATALOG["findings"].function(frames).empty


def test_a_fake_world_is_named_where_ranks_are(frames: Frames) -> None:
    texts = [each.text for each in notices_of(frames)]
    assert (
        "One process was the only rank of a fake world of 8: nothing was sent, and times of "
        "communication are unknown." in texts
    )
    answers = Answers(frames)
    assert extent(answers)[0] == "1 rank on 1 host, of a fake world of 8"
    shown = {tile.title: tile for tile in answer_tiles(answers, consistency_summary(answers))}
    assert shown["Exposed communication"].value == NOT_KNOWN
    assert not [tile.title for tile in shown.values() if tile.value == "1 fault"]
