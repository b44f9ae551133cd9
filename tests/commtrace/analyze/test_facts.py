from __future__ import annotations

from commtrace.analyze.facts import facts
from tests.commtrace.analyze.rows import START_NS, call, group, op, rank_row, run_of, step


def test_facts_of_tables_precede_recorded_facts() -> None:
    frames = run_of(
        [call(payload_bytes=8, wire_bytes=8), call(rank=1, payload_bytes=8), call()],
        ranks=[
            rank_row(0, host="b", num_dropped=2),
            rank_row(1, host="a", end_ns=START_NS + 2_500_000, num_dropped=3),
        ],
        groups=[group(), group("h", backend="nccl")],
        steps=[step(0, 0, 0, 1), step(1, 0, 0, 1), step(0, 1, 1, 2)],
        ops=[op(at=0)],
        run={"command": "train.py", "missing_ranks": [], "torn_ranks": [1, 2], "flag": True},
    )
    assert [tuple(row) for row in facts(frames).to_numpy()] == [
        ("ranks recorded", "2"),
        ("hosts", "a, b"),
        ("devices", "cpu"),
        ("backends", "gloo, nccl"),
        ("steps", "2"),
        ("recorded time", "2.5 ms"),
        ("communication calls", "3"),
        ("sizes known", "of 2 of 3 calls"),
        ("bytes sent known", "of 1 of 3 calls"),
        ("ends known", "of 0 of 3 calls"),
        ("blocked times known", "of 0 of 3 calls"),
        ("operators", "1"),
        ("process groups", "2"),
        ("calls dropped", "5"),
        ("world size", "2"),
        ("missing ranks", "none"),
        ("command", "train.py"),
        ("torn ranks", "1, 2"),
        ("flag", "true"),
    ]


def test_an_empty_trace_has_facts_too() -> None:
    values = dict(facts(run_of(num_ranks=0, groups=[])).to_numpy().tolist())
    assert values["ranks recorded"] == "0"
    assert values["recorded time"] == ""
    assert "ends known" not in values


def test_calls_that_an_import_may_lack_are_not_counted_as_none() -> None:
    values = dict(facts(run_of([call()], run={"imported_from": "a tool"})).to_numpy().tolist())
    assert values["calls dropped"] == ""


def test_values_that_all_calls_have_are_no_fact() -> None:
    known = {"at": 0, "until": 5, "blocked_ns": 5, "payload_bytes": 8, "wire_bytes": 8}
    values = dict(facts(run_of([call(**known)])).to_numpy().tolist())
    assert not [name for name in values if name.endswith(" known")]
