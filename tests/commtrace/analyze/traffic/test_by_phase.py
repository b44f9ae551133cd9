from __future__ import annotations

from commtrace.analyze.traffic.by_phase import by_phase
from tests.commtrace.analyze.rows import call, run_of


def test_phases_come_in_the_order_of_a_step_and_unknown_ones_last() -> None:
    phases = ["other", "strange", "backward", "optimizer", "recompute", "forward", "backward"]
    frames = run_of([call(phase=phase, wire_bytes=8) for phase in phases], num_ranks=1)
    table = by_phase(frames)
    assert table["phase"].tolist() == [
        "forward",
        "backward",
        "recompute",
        "optimizer",
        "other",
        "strange",
    ]
    assert table["num_calls"].tolist() == [1, 2, 1, 1, 1, 1]
    assert table["wire_bytes"].tolist() == [8, 16, 8, 8, 8, 8]
