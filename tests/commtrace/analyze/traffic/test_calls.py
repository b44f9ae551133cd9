from __future__ import annotations

from commtrace.analyze.traffic.calls import calls
from commtrace.schema import COMM
from tests.commtrace.analyze.rows import call, group, run_of


def test_a_call_keeps_what_was_recorded_and_gains_its_axis_and_its_wait() -> None:
    shared = {"seq": 0, "until": 100}
    frames = run_of(
        [
            call(rank=0, at=0, call_ns=100, blocked_ns=100, module="a.b", **shared),
            call(rank=1, at=60, call_ns=40, blocked_ns=40, **shared),
            call(rank=1, group="nameless", at=200),
        ],
        groups=[group(mesh_axis="dp")],
    )
    table = calls(frames)
    recorded = [column.name for column in COMM]
    assert table[recorded].astype(object).equals(frames.comm.astype(object))
    assert table["mesh_axis"].tolist() == ["dp", "dp", ""]
    assert table["wait_ns"].tolist() == [60, 0, -1]
    assert table["transfer_ns"].tolist() == [40, 40, -1]
    assert table["last_rank"].tolist() == [1, 1, -1]
