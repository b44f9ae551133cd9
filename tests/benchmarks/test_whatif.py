"""The benchmark of whatif records programs with and without a cost, and compares them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.whatif import __main__ as whatif
from benchmarks.whatif import speed
from benchmarks.whatif.claims import CLAIMS, Claim
from benchmarks.whatif.irregular import Irregular, irregular_trace
from benchmarks.whatif.predicted import Checked, checked
from benchmarks.whatif.programs import PROGRAMS
from benchmarks.whatif.recorded import record_claims
from benchmarks.whatif.residuals import NAMES, residuals
from benchmarks.whatif.unchanged import errors_of, write_profiles
from commtrace.analyze import load
from commtrace.importers import import_trace
from commtrace.tracefile import write_trace

MS = 1e6
# Program, ms that a rank sleeps at least without the cost, and ms that the cost adds to a step.
QUICK = (("barriers", 35, 15), ("blocking receive", 25, 15), ("slow layer", 40, 20))


def claim_of(program: str) -> Claim:
    (claim,) = [claim for claim in CLAIMS if claim.program == program]
    return claim


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whatif")
    record_claims([claim_of(program) for program, *_ in QUICK], folder, num_rounds=1)
    return folder


@pytest.mark.parametrize(("program", "least_ms", "cost_ms"), QUICK)
def test_a_prediction_is_between_the_work_that_is_left_and_the_recorded_step(
    program: str, least_ms: int, cost_ms: int, recordings: Path
) -> None:
    found = checked(claim_of(program), recordings, num_rounds=1)
    (before,), (predicted,) = found.before, found.most
    # Sleep never takes less time than it was asked for, but more on a busy machine.
    assert before > (least_ms + cost_ms) * MS
    assert before - predicted > cost_ms / 3 * MS
    assert predicted > least_ms * MS
    assert found.measured > least_ms * MS


def test_residuals_have_a_cause(recordings: Path) -> None:
    found = residuals(claim_of("barriers"), recordings)
    assert tuple(found.index) == NAMES
    assert abs(found.sum()) < 1e9


def test_every_claim_is_of_a_program_and_a_cost_of_it() -> None:
    assert {claim.program for claim in CLAIMS} == set(PROGRAMS)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS) >= 12
    assert all(claim.after < claim.before for claim in CLAIMS)


def figures(measured: float, predicted: tuple[float, float], cost: str = "barrier") -> Checked:
    costs = frozenset({"barrier", "objects"})
    claim = Claim("several", cost, ("remove where kind=barrier",), costs)
    return Checked(
        claim,
        before=(200.0,),
        after=(measured,),
        least=(predicted[0],),
        most=(predicted[1],),
        naive=(150.0,),
    )


def test_an_error_is_the_distance_to_the_nearest_prediction() -> None:
    assert figures(100.0, (98.0, 103.0)).error == 0
    assert figures(100.0, (104.0, 120.0)).error == pytest.approx(0.04)
    assert figures(100.0, (104.0, 120.0)).is_kept
    assert not figures(100.0, (80.0, 94.0)).is_kept
    assert figures(100.0, (80.0, 94.0)).naive_error == pytest.approx(0.5)


def test_noise_is_the_variation_between_rounds() -> None:
    claim = CLAIMS[0]
    even = Checked(claim, (2.0,) * 4, (1.0,) * 4, (1.2,) * 4, (1.2,) * 4, (1.0,) * 4)
    uneven = Checked(claim, (2.0,) * 4, (0.6, 0.8, 1.2, 1.4), (1.2,) * 4, (1.2,) * 4, (1.0,) * 4)
    assert even.noise == 0
    assert not even.is_kept
    assert uneven.noise > 0.2
    assert uneven.is_kept


@pytest.mark.parametrize(("second", "is_kept"), [(120.0, True), (95.0, False)])
def test_savings_of_a_program_are_in_the_measured_order(second: float, is_kept: bool) -> None:
    console = Console(record=True)
    found = [figures(100.0, (101.0, 101.0)), figures(second, (119.0, 119.0), "objects")]
    assert whatif._check_order(console, found) is is_kept
    assert "barrier, objects" in console.export_text()


def test_an_irregular_run_is_replayed_exactly(tmp_path: Path) -> None:
    plan = Irregular(num_ranks=64, num_calls=4_000, num_layers=4, num_micro_batches=2)
    path = tmp_path / "run.json"
    write_trace(irregular_trace(plan), path)
    run = load(path)
    assert run.num_calls == pytest.approx(plan.num_calls, rel=0.2)
    assert set(run.comm["kind"]) == {"send", "recv", "all_reduce"}
    assert run.groups["size"].nunique() > 3
    found = errors_of("irregular", run)
    assert (found.step, found.wait) == (0, 0)
    assert found.is_kept
    names = [each.name for each in speed.figures_of(path)]
    assert len(names) == len(set(names)) > len(speed.CHANGES)


def test_profiles_of_gpus_are_replayed_exactly(tmp_path: Path) -> None:
    run = load(import_trace(write_profiles(tmp_path, num_bytes=100_000)))
    found = errors_of("profiles", run)
    assert found.num_ranks == 4
    assert found.num_calls == run.num_calls > 0
    assert found.is_kept
    assert found.inferred < 0.01


@pytest.mark.parametrize(("is_kept", "code"), [(True, 0), (False, 1)])
def test_a_missed_bar_ends_with_code_1_where_that_is_asked_for(
    is_kept: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(whatif.PARTS, "speed", lambda *_: is_kept)
    assert whatif.main(["speed", "--check"]) == code
    assert whatif.main(["speed"]) == 0
