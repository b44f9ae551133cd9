"""Every option from each of its sources: the command line, the ini file, the marker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from commtrace.analyze import load
from commtrace.pytest_plugin.options import OPTIONS
from commtrace.tracefile import read_trace

pytest_plugins = ["pytester"]

DOCUMENT = Path(__file__).parents[3] / "docs" / "testing.md"

TEST = """
@pytest.mark.comms(all_reduce=2{marker})
def test_it():
    with fake_world(2):
        reduce(1)
        torch.ones(2) + 1
        dist.all_reduce(torch.ones(8))

def test_plain():
    with fake_world(2):
        reduce(1)
"""
FAILS = TEST.replace("all_reduce=2{", "all_reduce=0{")
UNEQUAL = """
def body():
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), group=pair)

@pytest.mark.comms(max_total=99{marker})
def test_it():
    import _thread
    from dtensor_core.testing import RankFailure
    with pytest.raises(RankFailure):
        run_threads(body, 2)

def test_plain():
    pass
"""
SLEEPS = """
import multiprocessing, time

@pytest.mark.comms(all_reduce=0{marker})
def test_it():
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(3,))
    process.start()
    process.join()
"""


@dataclass(frozen=True)
class Case:
    """A value of an option, and a test whose result shows that the value is in effect."""

    value: str
    body: str
    shows: str
    ret: int = 1


CASES = {
    "detail": Case("collective", FAILS, "", 1),
    "stacks": Case("true", FAILS, "", 1),
    "all": Case("true", TEST, r"1 +16 B +16 B +1 +all_reduce 1 +test_it.py::test_plain", 0),
    "consistent": Case("true", UNEQUAL, "the ranks are inconsistent"),
    "baseline": Case("same", TEST, "test_it.py::test_it has no baseline"),
    "baseline_dir": Case("kept", TEST, "no entry in kept/test_it.comms.json"),
    "timeout": Case("1", SLEEPS, "the ranks of the test did not end within 1 s"),
    "report": Case("kept", FAILS, "saved in .*/kept/test_it.py_test_it"),
    "summary": Case("true", TEST, r"2 +48 B +48 B +1 +all_reduce 2 +test_it.py::test_it", 0),
    "rows": Case("1", FAILS, "... 1 more lines: --comms-rows=2"),
    "update": Case("true", TEST, "baseline written: test_it.comms.json: 1 test", 0),
}
BESIDES = {
    "all": ["--comms-summary"],
    "baseline_dir": ["--comms-baseline=same"],
    "detail": ["--comms-report=kept"],
    "stacks": ["--comms-report=kept"],
}
DOORS = [
    pytest.param(option, door, id=f"{option.name}-{door}")
    for option in OPTIONS
    for door in ("flag", "ini", "marker")
    if getattr(option, door)
]


def run(project, option, door: str | None) -> pytest.RunResult:
    """Run the tests of an option's case, with its value from a single source or from none."""
    case = CASES[option.name]
    marker = ""
    args = list(BESIDES.get(option.name, ()))
    if door == "marker":
        value = True if case.value == "true" else case.value
        marker = f", {option.marker}={value!r}"
    elif door == "flag":
        args.append(option.flag if case.value == "true" else f"{option.flag}={case.value}")
    elif door == "ini":
        project.ini(f"{option.ini} = {case.value}")
    project.write(case.body.format(marker=marker))
    return project.run(*args)


def kept_trace(project):
    return load(read_trace(project.path / "kept" / "test_it.py_test_it" / "run.json"))


def came_through(project, option, result: pytest.RunResult) -> bool:
    if option.name == "detail":
        return kept_trace(project).run["detail"] == CASES["detail"].value
    if option.name == "stacks":
        return bool((kept_trace(project).comm["stack"] != "").all())
    return re.search(CASES[option.name].shows, result.stdout.str()) is not None


@pytest.mark.parametrize(("option", "door"), DOORS)
def test_an_option_comes_through_each_of_its_doors(project, option, door: str) -> None:
    result = run(project, option, door)
    assert came_through(project, option, result)
    assert result.ret == CASES[option.name].ret


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_without_it_the_default_holds(project, option) -> None:
    assert not came_through(project, option, run(project, option, None))


def test_the_marker_goes_before_the_command_line_and_that_before_the_ini_file(project) -> None:
    project.ini("comms_baseline = same", "comms_rows = 1")
    body = TEST.format(marker=', baseline="off"')
    project.write(body)
    assert project.run("--comms-baseline=increase").ret == 0
    project.write(TEST.format(marker=""))
    assert project.run("--comms-baseline=off").ret == 0
    assert project.run("--fail-on-comms-increase").ret == 1
    assert project.run().ret == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("comms_detail = all", "comms_detail of the ini file is 'all'\n  why: it takes op, coll"),
        ("comms_all = maybe", "comms_all of the ini file is 'maybe'\n  why: it takes true or fal"),
        ("comms_rows = few", "comms_rows of the ini file is 'few'\n  why: it takes a number"),
    ],
)
def test_a_value_that_an_option_does_not_have_is_refused(project, line: str, message: str) -> None:
    project.ini(line)
    project.write("def test_it():\n    pass\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_the_document_has_every_option_with_its_doors() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)[^|]*\|([^|]*)\|([^|]*)\|", DOCUMENT.read_text(), re.M)
    message = {flag: (ini.strip(" `"), marker.strip(" `")) for flag, ini, marker in rows}
    known = {option.flag: (option.ini or "–", option.marker or "–") for option in OPTIONS}
    assert message == known
