"""A rule is evaluated on a trace that has all that it needs, and names data that is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from commtrace.analyze import Frames, load
from commtrace.analyze.findings import RULES, findings, needs, unanswered
from commtrace.analyze.findings.needs import Need
from commtrace.analyze.findings.table_rows import savings
from commtrace.schema import ALL_USED
from commtrace.tracefile import RECORDING, STEPS_FROM
from tests.commtrace.analyze.each_step_rows import UNIT, broadcasts, in_steps, reduced_to_root
from tests.commtrace.analyze.flow_rows import flowing
from tests.commtrace.analyze.metric_rows import collected
from tests.commtrace.analyze.overlap.overlap_lost.lossy import issued_late, of_unknown_dependencies
from tests.commtrace.analyze.routed import routed_trace
from tests.commtrace.analyze.rows import (
    accumulated,
    call,
    flagged,
    late_at_every_other,
    late_in_turn,
    late_trace,
    layouts_trace,
    run_of,
    step,
)
from tests.commtrace.analyze.values.rows import row

PROFILE = {"imported_from": "torch.profiler"}


def on_two_hosts(error_ns: int, lateness_ns: int = 3_000) -> Frames:
    """Rank 2 is late by that much to every second call, and on a host of its own."""
    frames = load(late_trace(lambda n, rank: lateness_ns * (rank == 2 and n % 2)))
    ranks = frames.ranks.assign(host=["a", "a", "b"], clock_error_ns=[0, 0, error_ns])
    ranks["host"] = ranks["host"].astype("category")
    return replace(frames, ranks=ranks, run={**frames.run, "clock": "clocks of several hosts"})


def without(frames: Frames, **columns: Any) -> Frames:
    """The run with these values in table `comm`, and without steps if calls have none."""
    comm = frames.comm.assign(**columns)
    for name in columns:
        comm[name] = comm[name].astype(frames.comm[name].dtype if name in INTEGERS else "category")
    return replace(frames, comm=comm, steps=frames.steps[:0] if "step" in columns else frames.steps)


INTEGERS = (
    "step", "payload_bytes", "wire_bytes", "blocked_ns", "complete_ns", "sent_id", "data_ready_ns",
    "used_shard", "result_used_ns", "data_op_id",
    "used_by_op_id",
)  # fmt: skip


def small(**more: Any) -> Frames:
    calls = [call(id=n, seq=n, step=0, at=9 * n, blocked_ns=4, payload_bytes=8) for n in range(20)]
    return run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 2000)], **more)


def halves() -> Frames:
    wide = {"payload_bytes": 100_000, "wire_bytes": 100_000, "blocked_ns": 60}
    names = ("bfloat16", "float32")
    return run_of([call(id=n, module="m.0", dtype=name, **wide) for n, name in enumerate(names)])


def flags() -> Frames:
    return run_of(flagged([ALL_USED, "", ALL_USED]), num_ranks=1)


def outside(*, phases: str = "forward backward", **more: Any) -> Frames:
    """Calls in a module in the first of the phases, and outside of modules in all of them."""
    first, *_ = phases.split()
    calls = [call(module="m", phase=first)]
    calls += [call(id=1 + n, phase=phase) for n, phase in enumerate(phases.split())]
    return run_of(calls, num_ranks=1, **more)


def late(**more: Any) -> Frames:
    return replace(load(late_trace(late_at_every_other)), **more)


def gathers() -> Frames:
    return run_of([call(id=n, kind="all_gather", sent_id=0, seq=n) for n in range(2)], num_ranks=1)


def reduced(role: str) -> Frames:
    """Gradients that two ranks do not reduce, and each rank's own gradient in a role."""
    torch.manual_seed(0)
    tensors = [torch.ones(4), torch.randn(4), torch.randn(4)]
    rows = [
        row(rank, number, {"role": each, "name": "w"}, tensor, tensor)
        for rank in range(2)
        for number, (each, tensor) in enumerate(
            [("parameter", tensors[0]), (role, tensors[1 + rank]), ("gradient", tensors[1 + rank])]
        )
    ]
    calls = [call(rank=rank, kind="all_reduce", step=0) for rank in range(2)]
    return run_of(calls, num_ranks=2, fingerprints=rows)


def padded() -> Frames:
    layouts = {"source_spec": "f32[5,16] tp:S(0)", "target_spec": "f32[5,16] tp:R"}
    return run_of([call(kind="all_gather", payload_bytes=384, wire_bytes=192, **layouts)])


def used_in_part() -> Frames:
    return run_of([call(rank=rank, seq=0, used_shard=1) for rank in range(2)], num_ranks=2)


LAYOUTS = load(layouts_trace(0))
REDUCED = run_of(accumulated(num_passes=2), num_ranks=1)
NO_TIMES = late()
NO_TIMES = replace(
    NO_TIMES,
    steps=NO_TIMES.steps.assign(start_ns=-1, end_ns=-1),
    ranks=NO_TIMES.ranks.assign(start_ns=-1, end_ns=-1),
)

ROUTED = load(routed_trace(0))
CASES: dict[str, tuple[Need, Frames, Frames]] = {
    "steps": (needs.STEPS, small(), without(small(), step=-1)),
    "duration": (needs.DURATION, late(), NO_TIMES),
    "layouts": (needs.LAYOUTS, padded(), without(padded(), source_spec="")),
    "layouts or uses": (
        needs.LAYOUTS_OR_USES,
        LAYOUTS,
        without(LAYOUTS, source_spec="", used_shard=-1),
    ),
    "uses": (needs.USES, used_in_part(), without(used_in_part(), used_shard=-1)),
    "modules": (needs.MODULES, halves(), without(halves(), module="")),
    "modules of passes": (needs.MODULES_OF_PASSES, outside(), outside(run=PROFILE)),
    "sizes": (needs.SIZES, small(), without(small(), payload_bytes=-1)),
    "splits": (needs.SPLITS, ROUTED, without(ROUTED, input_splits="", output_splits="")),
    "groups": (needs.PROCESS_GROUPS, small(), without(small(), group="")),
    "16 bits": (needs.HALF_TYPES, halves(), without(halves(), dtype="float32")),
    "contents": (needs.CONTENTS, flags(), replace(without(flags(), carries=""), run=PROFILE)),
    "logs": (needs.LOGS, flags(), without(flags(), reason="")),
    "identity": (needs.IDENTITY, gathers(), without(gathers(), sent_id=-1)),
    "units": (
        needs.UNITS,
        load(in_steps(UNIT)),
        without(load(in_steps(UNIT)), parameters=""),
    ),
    "gradients": (needs.GRADIENTS, REDUCED, without(REDUCED, parameters="")),
    "own gradients": (needs.OWN_GRADIENTS, reduced("local_gradient"), reduced("buffer")),
    "dependencies": (
        needs.DEPENDENCIES,
        issued_late().run(),
        of_unknown_dependencies().run(),
    ),
    "writes": (
        needs.WRITES,
        load(broadcasts()),
        without(load(broadcasts()), data_ready_ns=-1),
    ),
    "uses of reduced": (
        needs.USES_OF_REDUCED,
        load(reduced_to_root()),
        without(load(reduced_to_root()), result_used_ns=-1, used_shard=-1),
    ),
    "users": (
        needs.USERS,
        load(flowing()),
        without(load(flowing()), used_by_op_id=-1),
    ),
    "origins": (
        needs.ORIGINS,
        load(collected()),
        without(load(collected()), data_op_id=-1),
    ),
    "cores": (
        needs.CORES,
        load(late_trace(late_in_turn, cores=False)),
        load(late_trace(late_in_turn)),
    ),
    "waits": (needs.WAITS, late(), without(late(), blocked_ns=-1)),
    "alignment": (needs.ALIGNMENT, on_two_hosts(2_000), on_two_hosts(4_000)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_that_lacks_data_says_so_and_reports_nothing(case: str) -> None:
    need, whole, lacking = CASES[case]
    assert need.lacks(whole) == ""
    sentence = need.lacks(lacking)
    assert sentence.endswith(".")
    needing = {rule.name for rule in RULES if need in rule.needs}
    assert needing
    assert needing <= set(unanswered(lacking))
    assert sentence in unanswered(lacking).values()
    assert not needing & set(findings(lacking)["rule"])
    # In a trace that has the data, at least one of these rules has something to report.
    assert needing & set(findings(whole)["rule"])


def test_every_need_of_every_rule_has_a_case() -> None:
    tried = {need for need, *_ in CASES.values()}
    assert all(rule.needs for rule in RULES)
    assert {need for rule in RULES for need in rule.needs} == tried
    assert len({need.about for need in tried}) == len(tried)


def test_a_profile_tells_nothing_about_modules_in_the_backward_pass() -> None:
    frames = outside(run=PROFILE)
    assert unanswered(frames)["outside_modules"] == (
        "No call of the backward pass is in a module: torch.profiler does not state to which "
        "modules they belong."
    )
    assert "outside_modules" not in set(findings(frames)["rule"])
    # A recording attributes the calls of both passes, so there the finding is supported.
    assert "outside_modules" in set(findings(outside())["rule"])
    # So it is in a profile of forward passes only.
    assert "outside_modules" in set(findings(outside(phases="forward", run=PROFILE))["rule"])


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("shared_cores", "for how long ranks had no core"),
        ("overlap_lost", "when data was ready or used"),
        ("float32_messages", "whether data was cast for its call"),
    ],
)
def test_what_an_imported_trace_lacks_is_not_asked_of_a_recording(rule: str, what: str) -> None:
    lack = unanswered(late(run=PROFILE))[rule]
    assert lack.endswith(
        f"The trace does not state {what}, since it was imported from torch.profiler."
    )


def test_a_recording_that_counts_as_one_step_has_no_repetitions_within_a_step() -> None:
    frames = replace(REDUCED, run={**REDUCED.run, STEPS_FROM: RECORDING})
    assert "may belong to different steps" in unanswered(frames)["repeated_reduction"]


@pytest.mark.parametrize(
    ("error_ns", "lateness_ns", "is_found"),
    [(0, 3_000, True), (2_000, 3_000, True), (4_000, 3_000, False), (-1, 3_000, False)],
)
def test_a_delay_within_the_error_of_the_clocks_is_no_straggler(
    error_ns: int, lateness_ns: int, is_found: bool
) -> None:
    frames = on_two_hosts(error_ns, lateness_ns)
    assert ("straggler" in set(findings(frames)["rule"])) == is_found
    assert ("straggler" not in unanswered(frames)) == is_found


def test_messages_of_unknown_groups_are_not_counted_as_those_of_one_group() -> None:
    calls = [
        call(id=n, seq=n, step=0, at=9 * n, blocked_ns=4, payload_bytes=8, group="g" if n else "")
        for n in range(16)
    ]
    frames = run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 2000)])
    assert findings(frames).empty


def test_a_phase_that_is_not_known_is_not_named() -> None:
    calls = [
        call(id=n, seq=n, step=0, at=9 * n, payload_bytes=8, blocked_ns=4, phase="")
        for n in range(16)
    ]
    (one,) = findings(run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 2000)])).to_dict("records")
    assert one["title"].startswith("16 calls of all_reduce on tp carry 8 B on average")


def test_sizes_that_are_known_in_part_are_not_as_many_bytes_as_others() -> None:
    by_hand = accumulated(num_passes=1, by_hand=True)
    assert "repeated_reduction" in set(findings(run_of(by_hand, num_ranks=1))["rule"])
    unsized = [
        each._replace(payload_bytes=-1) if n in (2, 9) else each for n, each in enumerate(by_hand)
    ]
    assert "repeated_reduction" not in set(findings(run_of(unsized, num_ranks=1))["rule"])


def timed(blocked: Callable[[int], int]) -> dict[str, Any]:
    calls = [
        call(
            id=n, seq=n, step=0, kind="all_gather", carries="parameters", parameters="w",
            module="m", blocked_ns=blocked(n), wire_bytes=10 if blocked(n) >= 0 else -1,
            **({"at": 100 * n, "until": 100 * n + blocked(n)} if blocked(n) >= 0 else {}),
        )
        for n in range(3)
    ]  # fmt: skip
    (one,) = findings(run_of(calls, num_ranks=1)).to_dict("records")
    return {str(name): value for name, value in one.items()}


def test_a_saving_is_unknown_or_known_for_a_part_of_the_calls_and_never_0_instead() -> None:
    assert savings(timed(lambda n: 5), 1) == "10 ns and 20 B"
    part = timed(lambda n: 5 if n < 2 else -1)
    assert savings(part, 1) == "5 ns (known for 1 of 2 calls) and 10 B"
    assert savings(part, 1, "2% of it") == "5 ns (2% of it, known for 1 of 2 calls) and 10 B"
    unknown = timed(lambda n: -1)
    assert unknown["cost_ns"] != unknown["cost_ns"]
    assert unknown["num_untimed"] == 2
    assert savings(unknown, 1) == "an unknown amount of time and bytes"
    assert savings(unknown | {"cost_bytes": 20.0}, 1) == "20 B (time not known)"
    assert savings(unknown | {"most_ns": 0.0, "cost_bytes": 0.0}, 1) == ""
