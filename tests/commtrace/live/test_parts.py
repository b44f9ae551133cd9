"""The parts of the state, each by itself: rates, arrivals, folders that change, many ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commtrace.event import GroupRow
from commtrace.live import Observer
from commtrace.live.arrivals import Disagreements, Stragglers
from commtrace.live.clock import Clock
from commtrace.live.folder import RunTail
from commtrace.live.names import RunNames
from commtrace.live.rates import HORIZON_S, Rates
from commtrace.live.tail import SpoolTail
from commtrace.tracefile import SegmentedWriter
from commtrace.tracefile.destinations import RunFolder
from commtrace.tracefile.dump_files import StackDump, ThreadStack, dump_path, write_dump
from tests.commtrace.live.growing import SECOND, START_NS, Run
from tests.commtrace.synthetic import synthetic_facts

NUM_RANKS = 1024
NODE = 8


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_blocked_time_is_divided_among_the_seconds_that_it_spans() -> None:
    rates, end = Rates(), START_NS + 3 * SECOND + SECOND // 4
    rates.add(
        rank=ints(0), kind=ints(0), wire_bytes=np.array([8.0]), end_ns=ints(end),
        blocked_ns=ints(2 * SECOND), num_ranks=1, num_kinds=1, now_ns=end,
    )  # fmt: skip
    second = START_NS // SECOND
    shares = [rates.blocked_ns(range(each, each + 1), 1)[0] for each in range(second, second + 4)]
    assert shares == [0, 0.75 * SECOND, SECOND, 0.25 * SECOND]
    assert rates.by_kind(range(second + 3, second + 4), 1).tolist() == [[8.0, 1.0]]


def test_rates_keep_the_horizon_only() -> None:
    rates = Rates()
    for second in range(500):
        at = START_NS + second * SECOND
        rates.add(
            rank=ints(0), kind=ints(0), wire_bytes=np.array([1.0]), end_ns=ints(at),
            blocked_ns=ints(SECOND), num_ranks=1, num_kinds=1, now_ns=at,
        )  # fmt: skip
    assert len(rates._by_kind) <= HORIZON_S + 2
    assert len(rates._blocked) <= HORIZON_S + 2


def test_carried_calls_are_bounded() -> None:
    stragglers, disagreements = Stragglers(), Disagreements()
    sizes = ints(2)
    for number in range(2000):
        # The other member never comes.
        stragglers.add(ints(0), ints(number), ints(0), ints(number), ints(5))
        stragglers.complete(sizes)
        disagreements.add(ints(0), ints(number), ints(1), ints(0), ints(0))
    assert len(stragglers._carried) <= 256
    assert len(disagreements._carried) <= 256


def test_the_delay_is_the_shortest_wait_of_the_others() -> None:
    stragglers = Stragglers()
    stragglers.add(ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2), ints(0, 10, 25), ints(25, 12, 1))
    stragglers.complete(ints(3))
    # Rank 0 waited for 25, and rank 1 was blocked for 12 of the 15 before rank 2 arrived, which was
    # blocked for 1 itself.
    assert list(stragglers.late) == [(25, 2, 11)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path / "RUN.comm") as run:
        yield run


def test_segments_of_a_ring_are_followed_while_they_are_replaced(tmp_path: Path) -> None:
    store = RunFolder(tmp_path / "RUN.comm")
    facts = {**synthetic_facts(0, 1), "start_ns": START_NS}
    tail = RunTail(store.path, RunNames(), Clock())
    seen = 0
    with store.open(0) as stream:
        writer = SegmentedWriter(
            stream, facts, segment_bytes=4000, open_segment=store.open_segment, clock=lambda: 1
        )
        for step in range(200):
            writer.write({"steps": [(0, step, START_NS + step, START_NS + step + 1)]})
            seen += sum(len(news.steps) for _, news in tail.read(5.0))
        (recording,) = tail.recordings.values()
        assert len(recording.tails) == 2
        assert max(recording.tails) > 2
        assert (seen, recording.missed_segments, recording.damage) == (200, 0, "")
        for step in range(200, 800):  # several segments, unread
            writer.write({"steps": [(0, step, START_NS + step, START_NS + step + 1)]})
        late = sum(len(news.steps) for _, news in tail.read(5.0))
        assert 0 < late < 600
        assert recording.missed_segments > 0
        writer.close()


def test_a_folder_may_appear_later(run: Run) -> None:
    observer = run.observer()
    assert observer.refresh().ranks == ()
    run.start(0, 1).flush()
    assert len(observer.refresh().ranks) == 1


def test_files_that_are_no_spools_are_left_alone(run: Run) -> None:
    run.start(0, 1).flush()
    for name in ("manifest.json", "rank-00000.done.txt", "notes.spool.bak"):
        (run.folder / name).write_text("x")
    (run.folder / "folder.spool").mkdir()
    (run.folder / "broken.spool").symlink_to("nowhere")
    snapshot = run.observer().refresh()
    assert len(snapshot.ranks) == 1
    assert snapshot.notes == ()


def test_only_dumps_since_watching_began_are_shown(run: Run) -> None:
    rank = run.start(3, 4)
    rank.flush()
    dump = StackDump(3, "node0", 1003, run.time.ns, "", (ThreadStack("MainThread", 1, ()),), ())
    path = dump_path(run.folder / "rank-00003.spool")
    observer = Observer(run.observer().watch)
    assert observer.refresh().dumps == ()
    write_dump(path, dump)  # its file is of the real present, after the time of this test
    assert observer.refresh().dumps == (dump,)
    path.with_name("rank-00004.dump").write_text("{}")
    assert observer.refresh().dumps == (dump,)


def test_a_refresh_of_many_ranks_takes_a_fraction_of_a_second(run: Run) -> None:
    def groups_of(rank: int) -> list[GroupRow]:
        node, place = divmod(rank, NODE)
        tp = range(node * NODE, node * NODE + NODE)
        dp = range(place, NUM_RANKS, NODE)
        return [
            GroupRow(f"tp{node}", "", ",".join(map(str, tp)), NODE, "tp", "nccl"),
            GroupRow(f"dp{place}", "", ",".join(map(str, dp)), len(dp), "dp", "nccl"),
        ]

    ranks = [run.start(rank, NUM_RANKS, groups=groups_of(rank)) for rank in range(NUM_RANKS)]
    observer = run.observer()
    took, lasted = [], []
    for _ in range(4):
        for _ in range(4):  # as often as a rank writes
            run.time.pass_(0.25)
            for rank in ranks:
                for group in (f"tp{rank.number // NODE}", f"dp{rank.number % NODE}") * 2:
                    rank.end(rank.issue(group=group), 0.01)
                rank.flush()
        begin, clock = time.process_time(), time.perf_counter()
        snapshot = observer.refresh()
        took.append(time.process_time() - begin)
        lasted.append(time.perf_counter() - clock)
    assert len(snapshot.ranks) == NUM_RANKS
    assert snapshot.kinds[0].calls_per_s == pytest.approx(NUM_RANKS * 4 * 16 / 10, rel=0.3)
    print(f"refresh of {NUM_RANKS} ranks: {min(took):.2f} s of a processor, {min(lasted):.2f} s")
    assert min(took) < 2.0  # 0.6 s on an idle machine


def test_reading_stops_when_its_time_is_over_and_goes_on_with_the_others(run: Run) -> None:
    for rank in run.start_all(6):
        rank.issue()
    run.flush()
    watch = run.observer().watch
    ticking = iter(range(10**6))
    watch.tail._clock = Clock(monotonic_s=lambda: next(ticking), wall_ns=watch.clock.wall_ns)
    seen = []
    for _ in range(4):
        seen.append([recording.rank for recording, _ in watch.tail.read(2.0)])
    assert all(len(each) <= 2 for each in seen)
    assert sorted(rank for each in seen for rank in each) == list(range(6))


def test_a_file_that_cannot_be_read_is_said_and_not_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in run.start_all(2):
        rank.flush()

    def refused(tail: SpoolTail, most: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(SpoolTail, "_new_bytes", refused)
    snapshot = run.observer().refresh()
    assert snapshot.bytes_left == 0
    assert "rank-00000.spool: cannot be read: permission denied" in snapshot.notes[0]


def test_what_is_there_at_first_is_counted_until_it_is_read(run: Run) -> None:
    for rank in run.start_all(3):
        rank.flush()
    observer = run.observer()
    size = sum(path.stat().st_size for path in run.folder.glob("*.spool"))
    assert observer.refresh(-1.0).bytes_left == size
    assert observer.refresh().bytes_left == 0
    run.flush()
    assert observer.refresh(-1.0).bytes_left == 0
