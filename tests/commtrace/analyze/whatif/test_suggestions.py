from __future__ import annotations

from typing import Any

from commtrace.analyze import Frames
from commtrace.analyze.whatif.asked import what_if
from commtrace.analyze.whatif.suggestions import suggestions
from commtrace.analyze.whatif.table import best_changes
from tests.commtrace.analyze.rows import call, op, run_of, step

MS = 1_000_000
NUM_STEPS = 5


def texts(run: Frames) -> dict[str, list[str]]:
    """Changes that are tried, by their title."""
    return {each.title: [change.text for change in each.changes] for each in suggestions(run)}


def reduced(ops: tuple[str, ...] = (), **columns: Any) -> Frames:
    """Steps of 100 ms of two ranks: operators of 40 ms, and then four all-reduces of 5 ms each.

    Sizes tell that half of each is latency.
    """
    comm, steps, rows = [], [], []
    for number in range(NUM_STEPS):
        for rank in range(2):
            at = begin = 100 * MS * number
            for place, name in enumerate(ops):
                rows.append(
                    op(
                        rank=rank, id=len(ops) * number + place, op=name, at=at, level="local",
                        duration_ns=40 * MS, step=number,
                    )
                )  # fmt: skip
                at += 40 * MS
            for place, (size, lasts) in enumerate(((100, 3), (1000, 12), (100, 3), (100, 3))):
                comm.append(
                    call(
                        rank=rank, id=4 * number + place, seq=4 * number + place, at=at,
                        until=at + lasts * MS, blocked_ns=lasts * MS, payload_bytes=size,
                        step=number, thread=0, result_used_ns=1_700_000_000_000_000_000
                        + begin + 99 * MS, **columns,
                    )
                )  # fmt: skip
                at += lasts * MS
            steps.append(step(rank, number, begin, begin + 100 * MS))
    return run_of(comm, steps=steps, ops=rows)


def test_buckets_of_gradients_may_be_twice_as_large() -> None:
    run = reduced(carries="gradients", phase="backward")
    (text,) = texts(run)["buckets of gradients twice as large"]
    assert text == "merge 2 where carries=gradients"
    # 3 + 12 ms and 3 + 3 ms become 13 and 4 ms: a latency of 2 ms is saved in each.
    assert what_if(run, [text]).saved_ns == (4 * MS, 4 * MS)
    assert text in set(best_changes(run)["text"])
    assert "buckets of parameters twice as large" not in texts(run)


def test_norms_of_a_tensor_parallel_model_may_run_on_a_part_of_the_tokens() -> None:
    title = "sequence parallelism on axis tp: norms and dropouts of a part of the tokens"
    run = reduced(("aten.native_layer_norm.default",), module="layers.0")
    assert texts(run)[title] == ["compute /2 where op~layer_norm"]
    assert what_if(run, texts(run)[title]).saved_ns == (20 * MS, 20 * MS)
    (row,) = [each for each in best_changes(run).to_dict("records") if each["change"] == title]
    assert (row["bound"], row["saved_ns"]) == ("limit", 20 * MS)
    for other in (
        reduced(("aten.mm.default",), module="layers.0"),
        reduced(("aten.native_layer_norm.default",), module="layers.0", phase="backward"),
        reduced(("aten.native_layer_norm.default",)),
    ):
        assert title not in texts(other)
