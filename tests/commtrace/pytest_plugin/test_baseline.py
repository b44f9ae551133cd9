"""Baselines: written, compared, kept readable, and independent of the user who runs the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commtrace.errors import NewerTraceError, NotATraceError
from commtrace.pytest_plugin import baseline

pytest_plugins = ["pytester"]

BODY = """
import os

pytestmark = pytest.mark.comms

def test_first():
    with fake_world(4):
        reduce(int(os.environ.get("TIMES", 2)), int(os.environ.get("SIZE", 4)))

@pytest.mark.parametrize("name", ["a/b", "c"])
def test_second(name):
    with fake_world(2):
        dist.barrier()
"""
WRITTEN = """\
{
  "format": "comms-baseline 1",
  "tests": {
    "test_first": {
      "ranks": 1,
      "places": [
        {"module": "", "op": "", "kind": "all_reduce", "group": "world", "phase": "other", \
"calls": 2, "payload_bytes": 32, "wire_bytes": 48}
      ]
    },
    "test_second[a/b]": {
      "ranks": 1,
      "places": [
        {"module": "", "op": "", "kind": "barrier", "group": "world", "phase": "other", \
"calls": 1, "payload_bytes": 0, "wire_bytes": 0}
      ]
    },
    "test_second[c]": {
      "ranks": 1,
      "places": [
        {"module": "", "op": "", "kind": "barrier", "group": "world", "phase": "other", \
"calls": 1, "payload_bytes": 0, "wire_bytes": 0}
      ]
    }
  }
}
"""


@pytest.fixture
def updated(project):
    """A project whose baseline is `WRITTEN`."""
    project.passes(BODY, "--comms-update")
    return project


def path(project) -> Path:
    return project.path / "test_it.comms.json"


def test_an_update_writes_what_ran_a_line_a_place(updated) -> None:
    assert path(updated).read_text() == WRITTEN
    assert updated.run("--fail-on-comms-increase").ret == 0
    assert updated.run("--comms-baseline=same").ret == 0


def test_only_what_ran_and_passed_is_rewritten(updated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMES", "3")
    updated.run("--comms-update", "-k", "second")
    assert path(updated).read_text() == WRITTEN
    updated.run("--comms-update", "test_it.py::test_first")
    tests = json.loads(path(updated).read_text())["tests"]
    assert tests["test_first"]["places"][0]["calls"] == 3
    assert len(tests) == 3
    updated.write(BODY.replace("reduce(int", "assert 0\n        reduce(int"))
    before = path(updated).read_text()
    updated.run("--comms-update")
    assert path(updated).read_text() == before


def test_an_update_that_changes_nothing_writes_nothing(updated) -> None:
    when = path(updated).stat().st_mtime_ns
    assert "baseline written" not in updated.run("--comms-update").stdout.str()
    assert path(updated).stat().st_mtime_ns == when


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TIMES", "3", "found: calls 2 -> 3; wire 48 B -> 72 B"),
        ("SIZE", "8", "found: wire 48 B -> 96 B"),
    ],
)
def test_more_calls_or_more_bytes_fail(
    updated, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert updated.run().ret == 0
    text = updated.run("--fail-on-comms-increase").stdout.str()
    assert "test_it.py::test_first communicates more than its baseline" in text
    assert message in text
    update = 'pytest --comms-update "test_it.py::test_first" and commit test_it.comms.json'
    assert f"try: if this is intended, {update}" in text


def test_the_change_is_reported_place_by_place(updated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMES", "3")
    text = updated.run("--fail-on-comms-increase").stdout.str()
    assert (
        "baseline -> now, per rank:\n"
        "     kind         calls       payload          wire  phase  module  operator  group\n"
        "  ~  all_reduce  2 -> 3  32 B -> 48 B  48 B -> 72 B  other                    world\n"
    ) in text


def test_less_fails_only_where_it_has_to_be_the_same(
    updated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMES", "0")
    assert updated.run("--fail-on-comms-increase").ret == 0
    text = updated.run("--comms-baseline=same").stdout.str()
    assert "test_it.py::test_first differs from its baseline" in text
    assert "  -  all_reduce  2 -> 0  32 B -> 0 B  48 B -> 0 B" in text


def test_a_test_without_an_entry_fails(updated) -> None:
    updated.write(BODY + "\ndef test_new():\n    pass\n")
    text = updated.run("--fail-on-comms-increase").stdout.str()
    assert "test_it.py::test_new has no baseline\n  found: no entry in test_it.comms.json" in text
    assert "why: without a baseline, the test could never fail" in text


def test_an_entry_without_a_test_is_reported_if_its_entire_file_was_collected(updated) -> None:
    updated.write(BODY.replace("def test_first", "def test_renamed"))
    message = "baseline without a test: test_it.comms.json: test_first; remove the entry"
    assert message in updated.run("--comms-update").stdout.str()
    assert message in updated.run("--comms-update", "-k", "second").stdout.str()
    assert message not in updated.run("--comms-update", "test_it.py::test_renamed").stdout.str()
    assert message not in updated.run().stdout.str()


def test_a_marker_may_keep_a_test_out(project) -> None:
    project.passes(
        """
@pytest.mark.comms(baseline=False)
def test_it():
    pass
""",
        "--comms-update",
    )
    assert not path(project).exists()


def test_numbers_are_of_one_rank_and_groups_have_names_that_last(project) -> None:
    project.passes(
        """
def body():
    pair = dist.new_group([0, 1])
    dist.new_group([0])
    reduce()
    if dist.get_rank() < 2:
        dist.barrier(pair)

@pytest.mark.comms
def test_it():
    run_threads(body, 4)
    run_threads(body, 4)
""",
        "--comms-update",
    )
    (entry,) = json.loads(path(project).read_text())["tests"].values()
    seen = {(p["kind"], p["group"]): p["calls"] for p in entry["places"]}
    assert seen == {("all_reduce", "world"): 2, ("barrier", "2 of 4"): 1}
    assert entry["ranks"] == 4


def test_workers_bring_their_entries_to_one_writer(updated) -> None:
    path(updated).unlink()
    line = ("-p", "no:cacheprovider", "-q", "-n", "2", "--comms-summary", "--comms-update")
    result = updated.pytester.runpytest_subprocess(*line, timeout=200)
    assert result.ret == 0, result.stdout.str()
    assert path(updated).read_text() == WRITTEN
    assert "baseline written: test_it.comms.json: 3 tests" in result.stdout.str()
    assert "all_reduce 2  test_it.py::test_first" in result.stdout.str()


def test_a_folder_has_the_files_as_the_tests_lie(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "a" / "test_x.py"
    assert baseline.path_of(file, "", tmp_path) == tmp_path / "tests/a/test_x.comms.json"
    assert baseline.path_of(file, "k", tmp_path) == tmp_path / "k/tests/a/test_x.comms.json"
    elsewhere = tmp_path.parent / "test_x.py"
    assert baseline.path_of(elsewhere, "k", tmp_path) == tmp_path / "k/test_x.comms.json"


def test_written_and_read_is_the_same(tmp_path: Path) -> None:
    place = dict.fromkeys(("module", "op", "kind", "group", "phase"), "x")
    entry = {"ranks": 3, "places": [place | {"calls": 1 / 3, "payload_bytes": 2, "wire_bytes": 0}]}
    entries = {"test_b": entry, 'test_"a"[é]': {"ranks": 1, "places": []}}
    assert baseline.write(tmp_path / "a" / "b.comms.json", entries)
    assert baseline.read(tmp_path / "a" / "b.comms.json") == entries
    assert baseline.compare(entry, entry, "same", test="", path="") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "comms-baseline 1", "tests": 3}'])
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(NotATraceError, match=r"cannot read the baseline .*/x\n  found: "):
        baseline.read(tmp_path / "x")


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"format": "comms-baseline 2", "tests": {}}')
    with pytest.raises(NewerTraceError, match="found: version 2\n  why: this commtrace reads ver"):
        baseline.read(tmp_path / "x")


def test_a_broken_baseline_fails_the_test_and_is_left_alone(updated) -> None:
    path(updated).write_text("{")
    assert "cannot read the baseline" in updated.run("--fail-on-comms-increase").stderr.str()
    assert updated.run("--comms-update").ret != 0
    assert path(updated).read_text() == "{"
