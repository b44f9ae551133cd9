"""The test files in docs/testing.md pass, and its failures are printed as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commtrace.pytest_plugin.conftest import Project, loaded, project

pytest_plugins = ["pytester"]

TEXT = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
PRINTED = re.findall(r"```text\n(.*?)```", TEXT, re.S)

__all__ = ["loaded", "project"]


def written(project: Project, program: str) -> None:
    (project.path / "test_steps.py").write_text(program)


@pytest.mark.parametrize("program", PROGRAMS, ids=["marker", "class", "fixture", "layouts"])
def test_the_programs_pass(project: Project, program: str) -> None:
    written(project, program)
    result = project.run()
    assert result.ret == 0, result.stdout.str()


def test_the_failure_is_what_is_printed(project: Project) -> None:
    program = PROGRAMS[0].replace(
        'all_reduce=2, total=2, max_payload="1 MB", exact=True', "all_reduce=1"
    )
    written(project, program)
    assert PRINTED[0] in project.run().stdout.str()


def test_the_growth_is_what_is_printed(project: Project) -> None:
    program = """
import pytest, torch, torch.distributed as dist
from dtensor_core.testing import fake_world

@pytest.mark.comms
def test_step():
    with fake_world(4):
        for _ in range(2):
            dist.all_reduce(torch.ones(4))
"""
    written(project, program)
    project.run("--comms-update")
    written(project, program.replace("range(2)", "range(3)"))
    assert PRINTED[1] in project.run("--fail-on-comms-increase").stdout.str()


def test_the_wrong_layout_is_what_is_printed(project: Project) -> None:
    program = PROGRAMS[3].replace(
        "    loss = model",
        "    if layout.sizes == {'tp': 2}:\n"
        "        model[0].weight.register_hook(lambda grad: 2 * grad)\n"
        "    loss = model",
    )
    written(project, program)
    printed, found = (
        re.sub(r"norm [\d.]+", "norm N", " ".join(text.split()))
        for text in (PRINTED[2], project.run().stdout.str())
    )
    assert printed in found
