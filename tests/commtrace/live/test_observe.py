"""Each number of a snapshot, of ranks that do what the test says at times that it sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commtrace.event import GroupRow
from commtrace.live import Observer, Snapshot, problems
from commtrace.live.snapshot import LiveProblem
from commtrace.live.wording import line, source_beside
from tests.commtrace.live.growing import SECOND, START_NS, Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path / "RUN.comm") as run:
        yield run


def of(snapshot: Snapshot, problem: str) -> Any:
    """The only problem of a name."""
    (found,) = [each for each in snapshot.problems if each.problem == problem]
    return found


def names_of(snapshot: Snapshot) -> list[str]:
    return [each.problem for each in snapshot.problems]


def hang(run: Run, seconds: float, observer: Observer) -> Snapshot:
    """Three ranks; rank 1 does not come to the second all-reduce."""
    ranks = run.start_all(3)
    calls = [rank.issue() for rank in ranks]
    run.pass_(0.1)
    for rank, call in zip(ranks, calls, strict=True):
        rank.end(call)
    for rank in (ranks[0], ranks[2]):
        rank.issue()
    run.flush()
    observer.refresh()
    run.pass_(seconds)
    return observer.refresh()


def test_a_rank_is_in_its_call_since_it_was_issued(run: Run) -> None:
    snapshot = hang(run, 3.0, run.observer())
    first, second, _ = snapshot.ranks
    assert (first.call, first.is_blocked, first.number) == ("all_reduce 1 of group 0", True, 1)
    assert first.for_s == pytest.approx(3.0)
    assert first.source == "train.py:7"
    assert (second.call, second.for_s) == ("", pytest.approx(3.0))
    assert names_of(snapshot) == []


def test_the_group_says_who_has_arrived_and_who_is_missing(run: Run) -> None:
    (group,) = hang(run, 3.0, run.observer()).groups
    assert (group.call, group.arrived, group.missing) == ("all_reduce 1", (0, 2), (1,))
    assert group.for_s == pytest.approx(3.0)


@pytest.mark.parametrize(("seconds", "expected"), [(4.0, []), (6.0, ["waiting"]), (60.5, ["hang"])])
def test_a_wait_becomes_a_hang_at_the_time_given(
    run: Run, seconds: float, expected: list[str]
) -> None:
    snapshot = hang(run, seconds, run.observer(hang_s=60))
    assert names_of(snapshot) == expected
    for problem in snapshot.problems:
        assert problem.ranks == (1,)
        is_hang = problem.problem == "hang"
        assert problem.text == (
            "Rank 1 made no further call; others wait at train.py:7"
            if is_hang
            else "Rank 1 never arrived at all_reduce 1 of group 0; ranks 0, 2 did at train.py:7"
        )
        assert problem.ranks == (1,)
        assert problem.for_s == pytest.approx(seconds)


def test_the_hang_ends_when_the_rank_arrives(run: Run) -> None:
    observer = run.observer(hang_s=10)
    assert names_of(hang(run, 20.0, observer)) == ["hang"]
    late = run.ranks[1].issue()
    for rank in run.ranks.values():
        for call in list(rank.flying):
            rank.end(call)
    del late
    run.flush()
    snapshot = observer.refresh()
    assert names_of(snapshot) == []
    assert snapshot.groups == ()


def test_blocked_share_is_that_of_the_last_ten_seconds(run: Run) -> None:
    rank, observer = run.start(0, 1), run.observer()
    run.flush()
    run.pass_(20.0)
    call = rank.issue()
    run.pass_(2.5)
    rank.end(call)
    run.pass_(2.5)
    run.flush()
    assert observer.refresh().ranks[0].blocked_share == pytest.approx(0.25)
    rank.issue()
    rank.flush()
    run.pass_(4.0)
    # 2.5 s that ended, and 4 s in the call, of 10 s.
    assert observer.refresh().blocked_share == pytest.approx(0.65)


def test_an_asynchronous_call_does_not_block(run: Run) -> None:
    rank, observer = run.start(0, 1), run.observer()
    run.pass_(5.0)
    call = rank.issue(is_async=True)._replace(call_ns=1000)
    rank.flying = [call]
    run.flush()
    run.pass_(2.0)
    state = observer.refresh().ranks[0]
    assert (state.call, state.is_blocked, state.blocked_share) == (
        "all_reduce 0 of group 0", False, 0.0,
    )  # fmt: skip


def test_a_receive_that_was_issued_ahead_hangs_once_it_is_waited_for(run: Run) -> None:
    observer = run.observer()
    first, _ = run.start_all(2)
    ahead = first.issue("recv", peer=1, is_async=True, call_ns=SECOND // 100)
    run.flush()
    observer.refresh()
    run.pass_(60.0)  # rank 0 computes, rank 1 too
    assert names_of(observer.refresh()) == []
    first.flying = [ahead._replace(blocked_ns=SECOND // 10)]  # it has begun to wait
    first.flush()
    snapshot = observer.refresh()
    assert (snapshot.ranks[0].is_blocked, names_of(snapshot)) == (True, [])
    run.pass_(10.0)
    assert names_of(observer.refresh()) == ["waiting"]
    run.pass_(30.0)
    (problem,) = observer.refresh().problems
    assert (problem.problem, problem.for_s) == ("hang", pytest.approx(40.0, abs=0.2))


def test_a_long_asynchronous_call_hangs_only_while_nothing_else_happens(run: Run) -> None:
    observer = run.observer()
    first, _ = run.start_all(2)
    first.issue(is_async=True, call_ns=SECOND // 100)
    for _ in range(60):
        run.pass_(1.0)
        first.end(first.issue("broadcast", group="g"))
        run.flush()
    observer.refresh()
    run.pass_(10.0)
    assert names_of(observer.refresh()) == ["waiting"]
    run.pass_(30.0)
    assert names_of(observer.refresh()) == ["hang"]


def test_bytes_and_calls_per_second_are_sums_by_kind_over_ranks(run: Run) -> None:
    ranks, observer = run.start_all(2), run.observer()
    for _ in range(5):
        run.pass_(1.0)
        for rank in ranks:
            rank.end(rank.issue("all_reduce", wire_bytes=600))
            rank.end(rank.issue("all_gather", wire_bytes=100))
    run.flush()
    run.pass_(1.0)
    kinds = {each.kind: each for each in observer.refresh().kinds}
    assert kinds["all_reduce"].bytes_per_s == pytest.approx(2 * 5 * 600 / 10)
    assert kinds["all_gather"].calls_per_s == pytest.approx(2 * 5 / 10)
    run.pass_(20.0)
    assert observer.refresh().kinds == ()


def test_the_straggler_is_the_last_to_arrive_and_its_share_what_all_others_waited(run: Run) -> None:
    ranks, observer = run.start_all(3), run.observer()
    run.pass_(11.0)
    for _ in range(5):
        first, second = ranks[0].issue(), ranks[1].issue()
        run.pass_(0.4)
        last = ranks[2].issue()
        for rank, call in zip(ranks, (first, second, last), strict=True):
            rank.end(call)
    run.flush()
    snapshot = observer.refresh()
    (straggler,) = snapshot.stragglers
    assert (straggler.rank, straggler.num_late) == (2, 5)
    assert straggler.share == pytest.approx(5 * 0.4 / 10)
    assert math.isinf(straggler.ratio)
    assert of(snapshot, "straggler").ranks == (2,)
    assert "straggler" not in names_of(run.observer(straggler_share=0.3).refresh())


def late(run: Run, rank: int, others: int, delays_s: Sequence[float]) -> None:
    """Collectives at which a rank arrives late."""
    ranks = run.start_all(others + 1)
    run.pass_(11.0)
    for delay_s in delays_s:
        calls = {each.number: each.issue() for each in ranks if each.number != rank}
        run.pass_(delay_s)
        calls[rank] = ranks[rank].issue()
        for each in ranks:
            each.end(calls[each.number])
    run.flush()


@pytest.mark.parametrize(
    ("delays_s", "is_straggler"),
    [([0.4] * 5, True), ([3.0, *[0.001] * 50], False), ([1.0] * 3, False), ([0.5] * 6, True)],
)
def test_one_long_stall_makes_no_straggler(
    run: Run, delays_s: list[float], is_straggler: bool
) -> None:
    observer = run.observer()
    late(run, 1, 3, delays_s)  # such as an evaluation on one rank
    assert ("straggler" in names_of(observer.refresh())) is is_straggler


def test_a_clock_that_is_a_little_ahead_makes_no_straggler(run: Run) -> None:
    observer = run.observer()
    ranks = run.start_all(2)
    run.pass_(11.0)
    for _ in range(40):
        calls = [ranks[0].issue(), ranks[1].issue(issue_ns=run.time.ns + SECOND // 20)]
        run.pass_(0.1)
        for rank, call in zip(ranks, calls, strict=True):
            rank.end(call, blocked_s=0.1)
    run.flush()
    assert names_of(observer.refresh()) == []


def test_ranks_that_are_late_in_turn_are_no_stragglers(run: Run) -> None:
    ranks, observer = run.start_all(2), run.observer()
    run.pass_(11.0)
    for turn in range(10):
        early = ranks[turn % 2].issue()
        run.pass_(0.3)
        late = ranks[1 - turn % 2].issue()
        ranks[turn % 2].end(early)
        ranks[1 - turn % 2].end(late)
    run.flush()
    snapshot = observer.refresh()
    assert names_of(snapshot) == []
    assert snapshot.stragglers == ()


@pytest.mark.parametrize(
    ("kinds", "field"),
    [(({}, {}, {"kind": "all_gather", "reduce_op": ""}), "kind"),
     (({}, {}, {"payload_bytes": 8000}), "size"),
     (({}, {}, {"dtype": "int64"}), "element type"),
     (({}, {}, {"reduce_op": "max"}), "reduction")],
)  # fmt: skip
def test_a_mismatch_is_said_as_soon_as_both_calls_are_seen(
    run: Run, kinds: tuple[dict[str, Any], ...], field: str
) -> None:
    observer = run.observer()
    for rank, more in zip(run.start_all(3), kinds, strict=True):
        rank.issue(**more)
    run.flush()
    problem = of(observer.refresh(), "mismatch")
    assert problem.ranks == (2,)
    assert problem.text.startswith(f"Rank 2 differs in the {field} of its call at train.py:7 (")


def test_a_mismatch_waits_for_the_rank_that_shows_who_differs(run: Run) -> None:
    observer = run.observer()
    first, second, third = run.start_all(3)
    second.issue(dtype="float64")
    third.issue()
    run.flush()
    assert names_of(observer.refresh()) == []
    run.pass_(1.0)
    first.issue()
    run.flush()
    assert of(observer.refresh(), "mismatch").ranks == (1,)


def test_a_mismatch_is_said_although_a_rank_stays_away(run: Run) -> None:
    observer = run.observer()
    _, second, third = run.start_all(3)
    second.issue(dtype="float64")
    third.issue()
    run.flush()
    run.pass_(2.5)
    assert of(observer.refresh(), "mismatch").ranks == (1, 2)


def test_equal_calls_of_uneven_sizes_are_no_mismatch(run: Run) -> None:
    observer = run.observer()
    for number, rank in enumerate(run.start_all(3)):
        rank.issue("all_to_all", reduce_op="", payload_bytes=1000 * number)
    run.flush()
    assert names_of(observer.refresh()) == []


def test_a_deadlock_of_two_groups_is_named(run: Run) -> None:
    groups = [GroupRow(name, "", "0,1", 2, name, "gloo") for name in ("tp", "dp")]
    observer = run.observer(hang_s=10)
    ranks = [run.start(number, 2, groups=groups) for number in range(2)]
    for rank in ranks:
        for name in ("tp", "dp"):
            rank.end(rank.issue(group=name))
    ranks[0].issue(group="tp")
    ranks[1].issue(group="dp", source_line=8)
    run.flush()
    run.pass_(15.0)
    assert of(observer.refresh(), "hang").text == (
        "Rank 1 went on to train.py:8, rank 0 to train.py:7"
    )


def test_numbers_do_not_count_transfers_of_the_group(run: Run) -> None:
    ranks, observer = run.start_all(3), run.observer(hang_s=10)
    for batch in range(4):
        send = ranks[0].issue("send", peer=1, reduce_op="")
        recv = ranks[1].issue("recv", peer=0, reduce_op="")
        ranks[0].end(send)
        ranks[1].end(recv)
        calls = [rank.issue() for rank in ranks]
        if batch % 2:
            run.flush()
            observer.refresh()
        for rank, call in zip(ranks, calls, strict=True):
            rank.end(call)
        run.flush()
        observer.refresh()
    ranks[0].issue()
    ranks[2].issue()
    run.flush()
    run.pass_(12.0)
    snapshot = observer.refresh()
    assert snapshot.ranks[0].number == snapshot.ranks[2].number == 4
    assert of(snapshot, "hang").ranks == (1,)
    assert of(snapshot, "hang").text == "Rank 1 made no further call; others wait at train.py:7"


def test_a_receive_without_its_send_hangs(run: Run) -> None:
    ranks, observer = run.start_all(2), run.observer(hang_s=10)
    for _ in range(3):
        send, recv = ranks[0].issue("send", peer=1), ranks[1].issue("recv", peer=0)
        ranks[0].end(send)
        ranks[1].end(recv)
    ranks[1].issue("recv", peer=0)
    run.flush()
    run.pass_(12.0)
    problem = of(observer.refresh(), "hang")
    assert problem.text == (
        "Rank 1 waits in recv from rank 0: rank 0 has made no send that matches at train.py:7"
    )


def test_a_killed_rank_is_dead_once_its_signs_of_life_stop(run: Run) -> None:
    observer = run.observer(hang_s=10)
    hang(run, 0.5, observer)
    run.kill(1)
    assert observer.refresh().ranks[1].life == "running"
    run.pass_(4.0)
    snapshot = observer.refresh()
    assert [each.life for each in snapshot.ranks] == ["running", "died", "running"]
    assert of(snapshot, "died").ranks == (1,)
    assert not snapshot.is_over


def test_a_process_that_lives_but_gives_no_sign_is_stopped(run: Run) -> None:
    observer = run.observer()
    hang(run, 0.5, observer)
    run.ranks.pop(1)
    run.pass_(4.0)
    snapshot = observer.refresh()
    assert snapshot.ranks[1].life == "stopped"
    assert "holds Python's lock" in of(snapshot, "stopped").text


def test_a_node_that_stopped_writing_is_named(run: Run) -> None:
    observer = run.observer()
    for number in range(4):
        run.start(number, 4, host=f"node{number // 2}", boot=f"boot{number // 2}").flush()
    observer.refresh()
    for number in (2, 3):
        run.ranks.pop(number)
    run.pass_(20.0)
    problem = of(observer.refresh(), "silent")
    assert problem.ranks == (2, 3)
    assert problem.text.startswith("Ranks 2, 3 are silent (all of node1): no sign of life")


def test_a_recording_that_promises_no_signs_is_not_called_silent(run: Run) -> None:
    observer = run.observer()
    run.start(0, 1, host="elsewhere", beat_s=0).flush()
    observer.refresh()
    run.ranks.clear()
    run.time.pass_(100.0)
    snapshot = observer.refresh()
    assert snapshot.ranks[0].life == "quiet"
    assert names_of(snapshot) == []


def test_a_clock_that_is_ahead_is_said_and_corrected(run: Run) -> None:
    ahead = 100 * SECOND
    observer = run.observer()
    rank = run.start(0, 1, host="node7", boot="two", start_ns=run.time.ns + ahead)
    rank.issue(issue_ns=run.time.ns + ahead)
    rank.flush()
    observer.refresh()
    run.pass_(3.0)
    snapshot = observer.refresh()
    assert (
        "the clock of node7 is about 100 s ahead of the clock of this machine" in snapshot.notes[0]
    )
    assert snapshot.ranks[0].for_s == pytest.approx(3.0)


@pytest.mark.parametrize(("boot", "is_other"), [("two", True), ("one", False)])
def test_the_clock_of_another_system_is_said_to_be_behind_after_three_looks(
    run: Run, boot: str, is_other: bool
) -> None:
    observer = run.observer()
    rank = run.start(0, 1, host="node7", boot=boot)
    for _ in range(5):
        call = rank.issue(issue_ns=run.time.ns - 60 * SECOND)
        rank.flush()
        snapshot = observer.refresh()
        rank.flying.remove(call)
        run.pass_(1.0)
    # On the watcher's own system, an extension held Python's lock.
    assert ("the clock of node7 is about 60 s behind" in str(snapshot.notes)) is is_other


def test_old_events_are_no_sign_of_a_clock_that_is_off(run: Run) -> None:
    run.start(0, 1).issue()
    run.flush()
    run.pass_(500.0)
    assert run.observer().refresh().notes == ()


def test_steps_per_second_and_their_trend(run: Run) -> None:
    observer = run.observer()
    for rank in run.start_all(2):
        for step in range(20):
            rank.step(step, step * 0.5, step * 0.5 + 0.5)
        for step in range(10):
            rank.step(20 + step, 10 + step, 11 + step)
    run.flush()
    steps = observer.refresh().steps
    assert (steps.step, steps.per_s) == (29, pytest.approx(1.0))
    assert steps.change == pytest.approx(1.0)
    assert len(steps.durations_s) == 30


def test_the_rate_of_steps_leaves_out_the_first_one_if_it_takes_far_longer(run: Run) -> None:
    observer = run.observer()
    for rank in run.start_all(2):
        rank.step(0, 0.0, 20.0)
        for step in range(1, 5):
            rank.step(step, 19.5 + step * 0.5, 20 + step * 0.5)
    run.flush()
    steps = observer.refresh().steps
    assert steps.per_s == pytest.approx(2.0)
    assert steps.durations_s == pytest.approx((20.0, 0.5, 0.5, 0.5, 0.5))


def test_marked_steps_take_the_place_of_found_ones(run: Run) -> None:
    rank, observer = run.start(0, 1), run.observer()
    rank.step(0, 0, 1, "profiler")
    rank.step(0, 0, 2, "optimizer")
    rank.flush()
    assert observer.refresh().steps.durations_s == (2.0,)
    rank.step(0, 0, 3)
    rank.flush()
    assert observer.refresh().steps.durations_s == (3.0,)


def test_a_rank_that_restarts_counts_as_its_last_recording(run: Run) -> None:
    observer = run.observer()
    for rank in run.start_all(2):
        for _ in range(5):
            rank.end(rank.issue())
        rank.flush()
    observer.refresh()
    run.pass_(1.0)
    run.kill(1)
    again = run.start(1, 2, name="rank-00001.1.spool", pid=2001)
    again.end(again.issue())
    again.flush()
    snapshot = observer.refresh()
    assert (snapshot.ranks[1].pid, snapshot.ranks[1].num_restarts) == (2001, 1)
    assert "rank 1 recorded before; the latest counts" in snapshot.notes
    assert len(snapshot.ranks) == 2


def test_an_attempt_takes_the_place_of_the_one_before(run: Run) -> None:
    observer = run.observer()
    for number in range(3):
        run.start(number, 3, run={"run_id": "a", "attempt": 0}).flush()
    observer.refresh()
    run.pass_(10.0)
    for number in range(2):
        run.start(
            number, 2, name=f"rank-0000{number}.1.spool", run={"run_id": "a", "attempt": 1}
        ).flush()
    snapshot = observer.refresh()
    assert [each.rank for each in snapshot.ranks] == [0, 1]
    assert "3 recordings of earlier attempts left out" in snapshot.notes


@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "late"])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_smaller_run_in_the_same_folder_takes_the_place_of_the_one_before(
    run: Run, how: str, is_late: bool
) -> None:
    observer = run.observer()
    for rank in run.start_all(3):
        for step in range(200):
            rank.step(step, step, step + 1)
        rank.end(rank.issue())
        rank.close() if how == "closed" else rank.flush()
    for number in range(3):
        run.kill(number)
    if not is_late:
        observer.refresh()
    run.time.pass_(20.0)
    ranks = [run.start(number, 2, name=f"rank-0000{number}.1.spool") for number in range(2)]
    for rank in ranks:
        rank.step(0, 0, 4)
        rank.end(rank.issue())
        rank.flush()
    for _ in range(2):
        snapshot = (run.observer() if is_late else observer).refresh()
        assert ([each.rank for each in snapshot.ranks], snapshot.world_size) == ([0, 1], 2)
        assert (snapshot.steps.step, snapshot.steps.durations_s) == (0, (4.0,))
        assert not [each for each in snapshot.problems if each.problem == "died"]
        assert "1 recording of earlier attempts left out" in snapshot.notes
        run.pass_(2.0)
        ranks[0].end(ranks[0].issue())
        ranks[0].flush()


@pytest.mark.parametrize("is_longer", [False, True])
def test_a_run_whose_files_take_the_place_of_others_is_another_run(
    run: Run, is_longer: bool
) -> None:
    observer = run.observer()
    for rank in run.start_all(3):
        for _ in range(20):
            rank.end(rank.issue())
        rank.flush()
    observer.refresh()
    for number in range(3):
        (run.folder / f"rank-0000{number}.spool").unlink()
    run.pass_(10.0)
    ranks = run.start_all(3)
    for _ in range(40 if is_longer else 1):
        for rank in ranks:
            rank.end(rank.issue())
    call = ranks[0].issue()
    ranks[2].issue()
    run.flush()
    observer.refresh()
    run.pass_(40.0)
    snapshot = observer.refresh()
    (problem,) = snapshot.problems
    assert (problem.problem, problem.ranks) == ("hang", (1,))
    assert snapshot.groups[0].call == f"all_reduce {call.seq}"
    assert snapshot.groups[0].missing == (1,)


def test_a_rank_out_of_sight_is_not_known_to_hang(run: Run) -> None:
    observer = run.observer()
    for rank in run.start_all(2, host="node1", boot="two"):
        rank.issue()
    run.flush()
    observer.refresh()
    run.time.pass_(60.0)  # the file system is out of reach, or their node is
    snapshot = observer.refresh()
    assert names_of(snapshot) == ["silent"]
    run.beat()
    assert names_of(observer.refresh()) == ["hang"]


def test_a_mismatch_has_the_age_of_its_calls(run: Run) -> None:
    observer = run.observer()
    first, second = run.start_all(2)
    first.issue()
    second.issue("barrier")
    run.flush()
    observer.refresh()
    run.pass_(40.0)
    mismatch = observer.refresh().problems[0]
    assert (mismatch.problem, mismatch.for_s) == ("mismatch", pytest.approx(40.0))


def test_calls_that_were_not_kept_are_said_and_their_rank_is_not_blamed(run: Run) -> None:
    observer = run.observer()
    first, second = run.start_all(2)
    for rank in (first, second):
        rank.end(rank.issue())
    first.issue()
    second.flush({"num_dropped": 3})
    run.flush()
    run.pass_(40.0)
    snapshot = observer.refresh()
    assert "3 calls of rank 1 dropped: not all of their calls are seen" in snapshot.notes
    (problem,) = snapshot.problems
    assert problem.problem == "hang"
    assert "never arrived" not in problem.text


def test_ranks_without_a_recording_are_listed(run: Run) -> None:
    run.start(0, 4).flush()
    snapshot = run.observer().refresh()
    assert (snapshot.world_size, snapshot.unrecorded) == (4, (1, 2, 3))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("recv", "Rank 0 is in recv from any rank. The other end has been issued, or its rank"),
        ("all_reduce", "Rank 0 is in all_reduce 0 of group 0. All recorded members have"),
    ],
)
def test_a_hang_that_nothing_explains_says_what_is_known(run: Run, kind: str, words: str) -> None:
    observer = run.observer()
    run.start(0, 2).issue(kind, peer=-1)
    run.flush()
    observer.refresh()
    run.pass_(40.0)
    assert of(observer.refresh(), "hang").text.startswith(words)


def test_a_run_without_ranks_has_no_numbers(run: Run) -> None:
    assert line(run.observer().refresh()).endswith("  no rank has begun to record")


def test_a_vanished_folder_leaves_the_last_state(run: Run, tmp_path: Path) -> None:
    observer = run.observer()
    hang(run, 3.0, observer)
    run.folder.rename(tmp_path / "elsewhere")
    snapshot = observer.refresh()
    assert snapshot.is_gone
    assert len(snapshot.ranks) == 3


def test_a_damaged_spool_is_said_and_the_others_go_on(run: Run) -> None:
    observer = run.observer()
    hang(run, 3.0, observer)
    (run.folder / "rank-00002.spool").write_bytes(b"nothing")
    run.ranks.pop(2)
    run.ranks[1].issue()
    run.flush()
    snapshot = observer.refresh()
    assert any("rank-00002.spool" in note for note in snapshot.notes)
    assert snapshot.ranks[1].call == "all_reduce 1 of group 0"


def test_a_run_is_over_when_all_ranks_have_ended(run: Run) -> None:
    observer = run.observer()
    ranks = run.start_all(2)
    ranks[0].close()
    ranks[1].flush()
    assert not observer.refresh().is_over
    ranks[1].close()
    snapshot = observer.refresh()
    assert snapshot.is_over
    assert [each.life for each in snapshot.ranks] == ["ended", "ended"]
    run.ranks.clear()


def test_a_late_look_says_the_same_as_one_from_the_start(run: Run) -> None:
    early = run.observer(hang_s=10)
    expected = hang(run, 15.0, early)
    late = run.observer(hang_s=10).refresh()
    assert late.problems == expected.problems
    assert late.groups == expected.groups
    assert [each.call for each in late.ranks] == [each.call for each in expected.ranks]


def test_a_run_of_the_past_is_seen_as_it_was_left(run: Run) -> None:
    assert run.time.ns == START_NS
    hang(run, 1.0, run.observer())
    for number in range(3):
        run.kill(number)
    run.time.pass_(1000.0)
    snapshot = run.observer().refresh()
    assert snapshot.is_over
    assert snapshot.ranks[0].for_s == pytest.approx(1.0)


def test_a_hang_is_checked_again_if_the_spools_could_not_be_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer, judged = run.observer(hang_s=10), problems._judged
    monkeypatch.setattr(problems, "_judged", unreadable)
    assert of(hang(run, 20.0, observer), "hang").text.startswith("Rank 1 never arrived at")
    monkeypatch.setattr(problems, "_judged", judged)
    run.pass_(1.0)
    found = of(observer.refresh(), "hang").text
    assert found == "Rank 1 made no further call; others wait at train.py:7"


def unreadable(run: Path) -> None:
    raise OSError(f"{run} is being removed")


def test_a_line_that_a_problem_has_in_its_text_is_not_said_again() -> None:
    problem = LiveProblem(problem="hang", ranks=(1,), text="others wait at train.py:7")
    assert source_beside(replace(problem, source="train.py:7")) == ""
    assert source_beside(replace(problem, source="train.py:9")) == "train.py:9"
