"""Random programs in dumps of every layout: a hang is blamed on its rank, and on no other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.dumps import ALL, LEFT, RIGHT, Dump, write_dumps
from tests.commtrace.importers.flight_recorder.layouts import DISTINCT, LAYOUTS

NUM_PROGRAMS = 8
NOBODY = -1


def half_of(rank: int) -> str:
    return LEFT if rank < 2 else RIGHT


def collective(chance: random.Random, dumps: list[Dump]) -> None:
    """Issue a single collective, or a collective on each half."""
    way, size = chance.randrange(5), chance.randrange(1, 5)
    for dump in dumps:
        if way == 0:
            dump.call("all_reduce")
        elif way == 1:
            dump.call("_all_gather_base", half_of(dump.rank), sizes=[[4]], out=[[8]])
        elif way == 2:
            dump.batch(["_broadcast_oop"] * 4, closing="ALLGATHER_coalesced", sizes=[[2]])
        elif way == 3:
            dump.call("broadcast", sizes=[[size]], dtype="Float")
        else:
            dump.barrier()


def transfers(chance: random.Random, dumps: list[Dump], num: int) -> None:
    """Issue transfers between two ranks, alone or in a batch, or within each half."""
    source, target = chance.sample(range(4), 2)
    send, recv = f"send {source}->{target}", f"recv {target}<-{source}"
    way = chance.randrange(3)
    if way == 0:
        dumps[source].call(send)
        dumps[target].call(recv)
    elif way == 1:
        dumps[source].batch([send] * num)
        dumps[target].batch([recv] * num)
    else:
        for dump in dumps:
            own = dump.rank % 2
            batch = [f"send {own}->{1 - own}", f"recv {own}<-{1 - own}"]
            dump.batch(batch, half_of(dump.rank))


def program(chance: random.Random, torch: str, missing: int) -> list[Dump]:
    """Return the dumps of a program in which a rank does not issue the last all-reduce."""
    dumps = [Dump(rank, torch=torch) for rank in range(4)]
    share, num = chance.choice([0.0, 0.3, 0.6]), chance.randrange(1, 4)
    for _ in range(chance.randrange(5, 60)):
        if chance.random() < share:
            transfers(chance, dumps, num)
        else:
            collective(chance, dumps)
    for dump in dumps:
        # A rank may issue more calls while it waits for the device.
        for _ in range(chance.randrange(1, 3)):
            if NOBODY != missing != dump.rank:
                dump.call("all_reduce", state="scheduled")
    return dumps


def faults(folder: Path) -> list[tuple[Any, ...]]:
    rows = CATALOG["consistency"].function(load(import_trace([folder])))
    rows = rows[rows["is_fault"]]
    return list(rows[["problem", "ranks", "group"]].itertuples(index=False, name=None))


@pytest.mark.parametrize("number", range(NUM_PROGRAMS))
@pytest.mark.parametrize("torch", DISTINCT)
def test_nobody_but_the_missing_rank_is_blamed(torch: str, number: int, tmp_path: Path) -> None:
    chance = random.Random(f"{torch} {number}")
    missing = chance.choice([NOBODY, 0, 1, 2, 3])
    dumps = program(chance, torch, missing)
    in_json = LAYOUTS[torch].has_json and chance.random() < 0.5
    blamed = [("missing call", str(missing), ALL)] if missing >= 0 else []
    assert faults(write_dumps(tmp_path / "whole", dumps, in_json=in_json)) == blamed
    last = chance.randrange(1, 40)
    for name, how in {"ring": {"last": last}, "active": {"only_active": True}}.items():
        assert set(faults(write_dumps(tmp_path / name, dumps, in_json=in_json, **how))) <= set(
            blamed
        )
