"""The life of a call is what its methods say; no other file writes its fields."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.request import Request
from tests.commtrace.recorder.recorded import unplaced_call

RECORDER = Path(__file__).parents[4] / "commtrace" / "recorder"


def written_fields(source: str, name: str) -> set[str]:
    """Fields that a source text assigns on variables and attributes called `name`."""
    return {
        target.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
        for each in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(each)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and ast.unparse(target.value).rpartition(".")[2].strip("_") == name
    }


@pytest.mark.parametrize(("cls", "name"), [(Call, "call"), (Request, "request")])
def test_only_its_own_file_writes_the_fields_of_a_call(cls: type, name: str) -> None:
    files = [file for file in RECORDER.rglob("*.py") if file.name != f"{name}.py"]
    assert len(files) > 30
    written = {file.name: written_fields(file.read_text(), name) for file in files}
    assert {file: fields for file, fields in written.items() if fields} == {}
    assert written_fields(f"self.{name}.a, x = 1, 2\n{name}.b += 1", name) == {"a", "b"}


def test_a_call_that_raised_is_over() -> None:
    call = unplaced_call()
    call.issued(5)
    assert not call.is_over()
    call.raised()
    assert call.is_over()
    assert (call.issue_ns, call.complete_ns) == (5, -1)


def test_a_wait_completes_a_call_on_the_cpu_unless_its_completion_is_known() -> None:
    first, second = unplaced_call(), unplaced_call()
    second.completed(7)
    for call in (first, second):
        call.waited(3, 10)
        assert (call.is_over(), call.waited_ns, call.num_waits) == (True, 7, 1)
    assert (first.complete_ns, second.complete_ns) == (10, 7)


def test_a_call_is_not_over_while_its_completion_or_its_blocked_time_is_outstanding() -> None:
    call = unplaced_call()
    call.returned_work(set())  # dropped at once
    assert call.is_over()
    call.watch()
    assert not call.is_over()
    call.unwatch()
    call.expect_blocked_time()
    assert not call.is_over()
    call.blocked_time_reported()
    assert call.is_over()
