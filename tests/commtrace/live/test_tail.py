"""The incremental reader takes new data, once, and trusts nothing."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from commtrace.event import GroupRow
from commtrace.live.batches import parse
from commtrace.live.names import RunNames
from commtrace.live.tail import CALL_COLUMNS, News, SpoolTail
from commtrace.tracefile import SpoolWriter, read_spool
from commtrace.tracefile.reading import DamageError
from tests.commtrace.live.growing import Run
from tests.commtrace.synthetic import synthetic_facts


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """The spool of a rank with 30 batches, some of them with calls in flight."""
    with Run(tmp_path / "RUN.comm") as run:
        rank, chance = run.start(0, 2), random.Random(1)
        for batch in range(30):
            for _ in range(chance.randrange(6)):
                call = rank.issue(chance.choice(["all_reduce", "broadcast"]), source_line=batch % 5)
                run.pass_(0.01)
                if chance.random() < 0.7:
                    rank.end(call)
            rank.flush()
    return next((tmp_path / "RUN.comm").glob("*.spool"))


def ids_of(news: list[News]) -> list[int]:
    return sorted(int(each) for one in news for calls in one.calls for each in calls[0])


@pytest.mark.parametrize("seed", range(5))
def test_reading_at_any_lengths_finds_each_call_once(
    spool: Path, tmp_path: Path, seed: int
) -> None:
    data, chance = spool.read_bytes(), random.Random(seed)
    growing = tmp_path / "growing.spool"
    growing.touch()
    tail, found = SpoolTail(growing, RunNames()), []
    while (size := growing.stat().st_size) < len(data):
        with growing.open("ab") as stream:
            stream.write(data[size : size + chance.randrange(1, 400)])
        found.append(tail.read(0.0))
    comm = read_spool(spool).tables["comm"]
    ended = [
        number
        for number, complete in zip(comm["id"], comm["complete_ns"], strict=True)
        if complete >= 0
    ]
    assert ids_of(found) == sorted(ended)
    last = next(each.in_flight for each in reversed(found) if each.in_flight is not None)
    assert {each.id for each in last} == set(comm["id"]) - set(ended)
    assert tail.damage == ""


def test_columns_and_call_sites_are_those_of_the_whole_reader(spool: Path) -> None:
    names = RunNames()
    news = SpoolTail(spool, names).read(0.0)
    calls = np.concatenate(news.calls, axis=1)
    comm = read_spool(spool).tables["comm"]
    row_of = {number: row for row, number in enumerate(comm["id"])}
    for column in calls.T.tolist():
        call = dict(zip(CALL_COLUMNS, column, strict=True))
        row, site = row_of[call["id"]], names.sites[call["site"]]
        for name in ("seq", "issue_ns", "call_ns", "blocked_ns", "complete_ns", "step"):
            assert call[name] == comm[name][row]
        for name in ("kind", "reduce_op", "payload_bytes", "source_line"):
            assert getattr(site, name) == comm[name][row]
        assert names.groups[site.group].ranks == (0, 1)


def test_a_torn_batch_is_left_for_later(spool: Path, tmp_path: Path) -> None:
    data = spool.read_bytes()
    torn = tmp_path / "torn.spool"
    torn.write_bytes(data[:-5])
    tail = SpoolTail(torn, RunNames())
    first = tail.read(0.0)
    assert (tail.has_tail, tail.damage) == (True, "")
    torn.write_bytes(data)
    assert ids_of([first, tail.read(1.0)]) == ids_of([SpoolTail(spool, RunNames()).read(0.0)])
    assert not tail.has_tail


def test_a_wrong_checksum_is_damage_only_if_it_stays(spool: Path) -> None:
    data = bytearray(spool.read_bytes())
    data[-1] ^= 1
    spool.write_bytes(data)
    tail = SpoolTail(spool, RunNames())
    for at_s, damage in ((0.0, False), (5.0, False), (11.0, True)):
        spool.write_bytes(bytes(data) + b"\0" * round(at_s))  # a file that does not grow is left
        tail.read(at_s)
        assert bool(tail.damage) is damage
    assert "does not match its checksum" in tail.damage


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"something else entirely", "in place of the first line"),
        (b"commtrace-spool 5\n" + struct.pack("<II", 1 << 31, 0), "a batch of 2,147,483,648 bytes"),
    ],
)
def test_what_is_no_spool_is_said(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "odd.spool"
    path.write_bytes(data)
    tail = SpoolTail(path, RunNames())
    assert tail.read(0.0).num_batches == 0
    assert words in tail.damage


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.spool"
    os.mkfifo(path)
    tail = SpoolTail(path, RunNames())
    tail.read(0.0)
    assert "something that is not a file" in tail.damage


def stored(head: bytes, data: bytes = b"") -> bytes:
    return zlib.compress(struct.pack("<I", len(head)) + head + data)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b'{"facts":{},"strings":[],"tables":{"steps":{"rows":9,"columns":{}}}}', "9 rows in 0"),
        (b'{"facts":{},"strings":[],"tables":{"x":{}}}', "a table 'x'"),
        (b'{"facts":{},"strings":[1],"tables":{}}', "a value that is not a string"),
        (b'{"facts":{},"strings":[],"tables":{"steps":{"rows":1,"columns":{"y":{}}}}}', "unknown"),
        (b"[]", "no facts"),
        (b"[" * 100_000, "its head"),
    ],
)
def test_counts_that_no_bytes_bear_out_are_refused(head: bytes, words: str) -> None:
    with pytest.raises(DamageError) as error:
        parse(stored(head))
    assert words in f"{error.value} {error.value.place}"


def test_a_bomb_is_not_inflated() -> None:
    with pytest.raises(DamageError, match="more than"):
        parse(zlib.compress(b"\0" * (100 << 20)))


def test_call_sites_of_a_written_spool_need_their_group_only_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.spool"
    with path.open("wb") as stream:
        writer = SpoolWriter(stream, synthetic_facts(0, 2))
        writer.write({"groups": [GroupRow("g", "", "0,1", 2, "", "gloo")]})
        writer.write({"groups": [GroupRow("g", "", "0,1", 2, "dp", "gloo")]})
    names = RunNames()
    SpoolTail(path, names).read(0.0)
    assert [(each.name, each.ranks) for each in names.groups] == [("g", (0, 1))]
    assert names.axes == {0: "dp"}
