"""The plugin in use: markers, the fixture, unseen communication, and the cost without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from commtrace.tracefile import read_trace
from tests.commtrace.synthetic import write_synthetic_run

pytest_plugins = ["pytester"]


def test_an_expectation_that_holds_passes(project) -> None:
    project.passes("""
@pytest.mark.comms(all_reduce=2, total=2, max_payload="1 MB", exact=True)
def test_it():
    with fake_world(4):
        reduce(2)
""")


def test_one_that_does_not_shows_both_numbers_and_the_line(project) -> None:
    text = project.failure("""
@pytest.mark.comms(all_reduce=2, total=2)
def test_it():
    with fake_world(4):
        dist.all_reduce(torch.ones(4))
""")
    assert "@pytest.mark.comms(all_reduce=2, total=2) does not hold" in text
    assert "found: all_reduce 1, expected 2; total 1, expected 2" in text
    assert "1  all_reduce     16 B  24 B  other  world  test_it.py:18 test_it" in text
    assert "Traceback" not in text
    assert "pytest_plugin" not in text


def test_the_summary_of_one_line_has_the_numbers(project) -> None:
    project.write("""
@pytest.mark.comms(all_reduce=2, total=2)
def test_by_marker():
    with fake_world(4):
        dist.all_reduce(torch.ones(4))

def test_by_fixture(comms):
    with fake_world(4):
        dist.all_reduce(torch.ones(4))
    comms.expect(all_reduce=2)

def test_of_others(comms):
    assert "a" == "found: b"
""")
    text = project.run().stdout.str()
    assert "test_by_marker - all_reduce 1, expected 2; total 1, " in text
    assert "test_by_fixture - all_reduce 1, expected 2\n" in text
    assert "test_of_others - AssertionError: assert 'a' ==" in text


def test_markers_of_module_class_and_function_add_up_and_the_nearest_counts(project) -> None:
    project.passes("""
pytestmark = pytest.mark.comms(barrier=0, all_reduce=1)

@pytest.mark.comms(all_reduce=2)
class TestIt:
    def test_of_the_class(self):
        with fake_world(4):
            reduce(2)

    @pytest.mark.comms(all_reduce=3, max_total=3)
    def test_of_its_own(self):
        with fake_world(4):
            reduce(3)

def test_of_the_module():
    with fake_world(4):
        reduce(1)
""")
    text = project.failure("""
pytestmark = pytest.mark.comms(barrier=0)

@pytest.mark.comms(all_reduce=1)
def test_it():
    with fake_world(4):
        reduce(1)
        dist.barrier()
""")
    assert "(all_reduce=1) and @pytest.mark.comms(barrier=0) does not hold" in text
    assert "found: barrier 1, expected 0" in text


def test_each_parameter_is_a_test_of_its_own(project) -> None:
    project.write("""
@pytest.mark.comms(all_reduce=2)
@pytest.mark.parametrize("times", [1, 2, pytest.param(3, marks=pytest.mark.comms(all_reduce=3))])
def test_it(times):
    with fake_world(4):
        reduce(times)
""")
    project.run("-v").assert_outcomes(passed=2, failed=1)


def test_two_markers_of_one_test_may_not_say_two_things(project) -> None:
    project.write("""
@pytest.mark.comms(all_reduce=2)
@pytest.mark.comms(all_reduce=3)
def test_it():
    pass
""")
    result = project.run()
    result.assert_outcomes(errors=1)
    assert "@pytest.mark.comms bounds all_reduce twice" in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("al_reduce=2", "try: all_reduce"),
        ("'all_reduce'", "@pytest.mark.comms has positional arguments"),
        ("detail='all'", "detail= of a marker is 'all'"),
        ("baselines=True", "try: baseline"),
    ],
)
def test_what_a_marker_does_not_know_is_an_error(project, arguments: str, message: str) -> None:
    project.write(f"""
@pytest.mark.comms({arguments})
def test_it():
    raise AssertionError("must not run")
""")
    result = project.run()
    result.assert_outcomes(errors=1)
    assert message in result.stdout.str()
    assert "must not run" not in result.stdout.str()


def test_a_test_that_fails_itself_keeps_its_failure_and_shows_what_was_recorded(project) -> None:
    text = project.failure("""
@pytest.mark.comms(all_reduce=7)
def test_it():
    with fake_world(4):
        reduce()
        assert 1 == 2
""")
    assert "assert 1 == 2" in text
    assert "does not hold" not in text
    assert " Captured communication call " in text
    assert "recorded, per rank, of rank 0:" in text


def test_skipped_and_expected_failures_stay_what_they_are(project) -> None:
    project.write("""
@pytest.mark.comms(all_reduce=7)
def test_skips():
    pytest.skip("not today")

@pytest.mark.xfail(strict=True)
@pytest.mark.comms(all_reduce=7)
def test_fails():
    pass
""")
    project.run().assert_outcomes(skipped=1, xfailed=1)


def test_fixtures_are_not_recorded(project) -> None:
    project.passes("""
@pytest.fixture
def world():
    with fake_world(4):
        reduce(5)
        yield

@pytest.mark.comms(all_reduce=1, exact=True)
def test_it(world):
    reduce(1)
""")


def test_modules_phases_and_operators_are_known(project) -> None:
    project.passes("""
class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.inner(x)
        dist.all_reduce(y)
        return y

@pytest.mark.comms(all_reduce=2, module="layers.*", phase="forward")
@pytest.mark.comms(total=0, module="layers.0.inner")
@pytest.mark.comms(total=0, phase="backward")
def test_it():
    model = torch.nn.Module()
    model.layers = torch.nn.Sequential(Twice(), Twice())
    model.forward = lambda x: model.layers(x)
    with fake_world(2), torch.no_grad():
        model(torch.ones(2, 4))
""")


def test_a_blind_recorder_fails_also_where_nothing_is_expected(project) -> None:
    text = project.failure("""
from commtrace.recorder import listening

@pytest.mark.comms(none=True)
def test_it():
    listening._interception.uninstall()
""")
    assert "@pytest.mark.comms(none=True) cannot be checked" in text
    assert "why: the recorder no longer intercepts calls: a test call was not" in text


def test_a_recorder_that_fails_on_a_call_fails_the_test(project) -> None:
    text = project.failure("""
from commtrace.recorder import RECORDER

@pytest.mark.comms(total=0)
def test_it(monkeypatch):
    def broken(*_):
        raise ValueError("no place")
    monkeypatch.setattr(RECORDER, "_request", broken)
    with fake_world(2):
        reduce()
    monkeypatch.undo()
""")
    assert "why: the recorder failed on 1 calls: ValueError: no place" in text


def test_calls_that_were_dropped_fail_the_test(project) -> None:
    text = project.failure("""
@pytest.mark.comms(max_total=3)
def test_it(comms):
    comms._recorded.own._output.buffer._most_calls = 1
    with fake_world(2):
        reduce(3)
""")
    assert "why: 2 calls were dropped to stay within the limits of the recording" in text


def test_zero_is_proven_where_recording_was_on(project) -> None:
    project.passes("""
@pytest.mark.comms(none=True)
def test_it():
    with fake_world(2):
        torch.ones(2) + 1

@pytest.mark.comms(total=0)
def test_without_a_process_group():
    pass
""")


def test_a_program_that_is_not_recorded_leaves_nothing_to_judge(project) -> None:
    text = project.failure("""
import subprocess, sys

@pytest.mark.comms(none=True)
def test_it():
    subprocess.run([sys.executable, "-c", "1"], check=True)
""")
    assert "the test started a program that is not recorded: " in text
    project.passes("""
import subprocess

@pytest.mark.comms(none=True)
def test_another_program():
    subprocess.run(["true"], check=True)
""")


def test_a_run_without_a_recorded_test_loads_nothing(project) -> None:
    (project.path / "test_it.py").write_text("""
import sys

def test_it():
    heavy = {"torch", "numpy", "pandas", "commtrace.session", "commtrace.tracefile"}
    assert not heavy & set(sys.modules)
    assert "commtrace.pytest_plugin" in sys.modules
""")
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(line, cwd=project.path, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_plugin_can_be_left_out(project) -> None:
    project.write("""
def test_it(comms):
    pass
""")
    result = project.run("-p", "no:commtrace")
    result.assert_outcomes(errors=1)
    assert "fixture 'comms' not found" in result.stdout.str()


def test_the_marker_is_registered(project) -> None:
    project.passes(
        """
@pytest.mark.comms(none=True)
def test_it():
    pass
""",
        "--strict-markers",
    )
    assert "@pytest.mark.comms(all_reduce=2" in project.run("--markers").stdout.str()


def test_the_trace_and_the_page_of_a_failure_are_kept(project) -> None:
    text = project.failure(
        """
@pytest.mark.comms(all_reduce=0)
def test_fails():
    run_threads(reduce, 2)

@pytest.mark.comms(all_reduce=1)
def test_passes():
    run_threads(reduce, 2)
""",
        "--comms-report=kept",
    )
    folder = project.path / "kept" / "test_it.py_test_fails"
    assert f"saved in {folder}" in text
    assert sorted(path.name for path in folder.iterdir()) == ["run.html", "run.json"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert read_trace(folder / "run.json").num_rows("comm") == 2


def test_ranks_that_have_to_fit_together_must_be_several(project) -> None:
    text = project.failure("""
@pytest.mark.comms(consistent=True)
def test_alone():
    with fake_world(4):
        reduce()

@pytest.mark.comms(consistent=True)
def test_together():
    run_threads(reduce, 2)
""")
    assert "1 failed, 1 passed" in text
    assert "the ranks cannot be compared\n  found: the recording of a single rank" in text


def test_a_trace_of_another_program_can_be_added(project) -> None:
    path = write_synthetic_run(project.path / "run.json", world_size=2, num_steps=1, num_layers=1)
    project.passes(f"""
import subprocess, sys

@pytest.mark.comms(all_reduce=3, all_gather=1, reduce_scatter=1, exact=True, module="layers.0")
def test_it(comms):
    subprocess.run([sys.executable, "-c", "1"], check=True)
    comms.add({str(path)!r})
    assert comms.ranks == [0, 1]
    assert comms.counts("phase") == {{"forward": 2, "backward": 3}}
""")


def test_what_the_fixture_refuses(project) -> None:
    project.passes(
        """
from commtrace.errors import RecordingError, UsageError

@pytest.fixture
def early(comms):
    with pytest.raises(RecordingError, match="found: use in a fixture"):
        comms.counts()

def refusal(function, *args, **options):
    with pytest.raises(UsageError) as caught:
        function(*args, **options)
    return str(caught.value)

def test_it(early, comms):
    def body():
        reduce()
        if dist.get_rank():
            alone = dist.new_group([1], use_local_synchronization=True)
            dist.all_reduce(torch.ones(1), group=alone)
        assert "a rank has only its own calls" in refusal(comms.check)

    run_threads(body, 2)
    reported = refusal(comms.counts)
    assert "found: rank 0: {'all_reduce': 1}; rank 1: {'all_reduce': 2}" in reported
    assert "try: comms.counts(rank=0)" in reported
    assert "found: recordings of ranks 0-1" in refusal(comms.total, rank=5)
    assert "it counts by kind" in refusal(comms.counts, "colour")
    assert "there is no table 'by_colour'" in refusal(comms.table, "by_colour")
    assert "comms.expect has an unknown argument 'al_reduce'" in refusal(comms.expect, al_reduce=1)
"""
    )
