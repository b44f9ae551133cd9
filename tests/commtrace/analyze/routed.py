"""Random runs with all-to-alls of experts: `routed_trace(seed)`."""

from __future__ import annotations

import random
from typing import Any

from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import call, step, trace_of

NUM_RANKS = 3
NUM_STEPS = 8
HOT = 2
"""The second expert of rank 1 in `layers.1`, with four rows for every row of the others."""


def routed_trace(seed: int) -> Trace:
    """Dispatches and combines of two layers; much about them is unknown or does not fit."""
    chance = random.Random(seed)
    comm: list[Any] = []
    number = 0
    for at in range(NUM_STEPS):
        for layer, phase in (
            ("layers.0", "forward"),
            ("layers.1", "forward"),
            ("layers.1", "backward"),
        ):
            rows = _rows(chance, is_hot=layer == "layers.1")
            of_ranks = [[own[2 * to] + own[2 * to + 1] for to in range(NUM_RANKS)] for own in rows]
            back = [[of_ranks[to][own] for to in range(NUM_RANKS)] for own in range(NUM_RANKS)]
            is_stated, is_odd = phase == "forward", chance.random() < 0.2
            for sent, line in ((of_ranks, 10), (back, 12)):
                for rank in range(NUM_RANKS):
                    got = [sent[source][rank] for source in range(NUM_RANKS)]
                    experts = rows[rank] if is_stated and line == 10 else []
                    late = chance.randrange(400)
                    begin = 20_000 * at + 900 * (number % 6) + late
                    comm.append(
                        call(
                            rank=rank, id=number, seq=number, kind="all_to_all", step=at,
                            at=begin, until=begin + 800 - late, call_ns=800 - late,
                            blocked_ns=chance.choice((800 - late, 800 - late, -1)),
                            module=layer, phase=phase, source_file="moe.py", source_line=line,
                            dtype="" if is_odd else "float32",
                            input_shapes=f"[{sum(sent[rank])},2]",
                            payload_bytes=8 * sum(sent[rank]),
                            wire_bytes=8 * (sum(sent[rank]) - sent[rank][rank]),
                            input_splits=_bytes(sent[rank]), output_splits=_bytes(got),
                            expert_rows=",".join(map(str, experts)),
                            source_spec=chance.choice(("", "on one rank")), thread=7,
                        )
                    )  # fmt: skip
                number += 1
    for rank in range(NUM_RANKS):  # of another number of ranks; a redistribution; without splits
        for splits, more in (
            ("8,8", {"module": "layers.0"}),
            ("0,64,8", {"source_spec": "f32[8,2] tp:S(0)", "module": "layers.1"}),
            ("", {"module": "layers.0"}),
        ):
            at = 20_000 * NUM_STEPS + number
            known = {
                "kind": "all_to_all",
                "payload_bytes": 24,
                "wire_bytes": 16,
                "thread": 7,
                "step": NUM_STEPS - 1,
            }
            comm.append(
                call(rank=rank, id=number, seq=number, at=at, until=at + 9, input_splits=splits,
                     **known, **more)
            )  # fmt: skip
            number += 1
        number -= 3
    steps = [
        step(rank, at, 20_000 * at, 20_000 * (at + 1))
        for rank in range(NUM_RANKS)
        for at in range(NUM_STEPS)
    ]
    chance.shuffle(comm)
    return trace_of(comm, num_ranks=NUM_RANKS, steps=steps)


def _rows(chance: random.Random, *, is_hot: bool) -> list[list[int]]:
    """Rows of each rank to each of two experts per rank."""
    usual = [[chance.randrange(8, 13) for _ in range(2 * NUM_RANKS)] for _ in range(NUM_RANKS)]
    for own in usual:
        own[HOT + 1] *= 6 if is_hot else 1
    return usual


def _bytes(rows: list[int]) -> str:
    return ",".join(str(8 * each) for each in rows)
