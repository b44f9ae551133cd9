"""Set-up and tear-down of a known harness do not count as communication of its test."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from commtrace.recorder.attribution.library_frames import HARNESSES

pytest_plugins = ["pytester"]

CASES = """
class TestIt(DTensorTestBase):
    world_size = 2

    {spawn}

    @pytest.mark.comms(all_reduce=1, exact=True)
    @with_comms
    def test_one_reduction(self):
        reduce()

    @pytest.mark.comms(none=True)
    @with_comms
    def test_nothing(self):
        torch.ones(2).sum()

    @pytest.mark.comms(all_reduce=2, exact=True)
    @with_comms
    def test_subtests(self):
        {run_subtests}({{"size": [4, 8]}}, lambda size: reduce(size=size))

    @pytest.mark.comms(barrier=1, exact=True)
    @with_comms
    def test_its_own_barrier(self):
        dist.barrier()

    @pytest.mark.comms(none=True)
    @with_comms
    def test_that_fails(self):
        reduce()
"""
FORKING = """
    def _spawn_processes(self):
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
"""
TORCHS = (
    "from torch.testing._internal.common_distributed import run_subtests\n"
    "from torch.testing._internal.distributed._tensor.common_dtensor import (\n"
    "    DTensorTestBase, with_comms)\n"
    + CASES.format(spawn=FORKING.strip(), run_subtests="run_subtests")
).replace("run_subtests({", "run_subtests(self, {")
OURS = "from dtensor_core.testing import DTensorTestBase, with_comms\n" + CASES.format(
    spawn="", run_subtests="self.run_subtests"
)
OURS_ON_THREADS = OURS.replace("DTensorTestBase", "DTensorOpTestBase")


@pytest.mark.parametrize(
    "cases", [TORCHS, OURS, OURS_ON_THREADS], ids=["torch", "processes", "threads"]
)
def test_only_the_body_of_a_test_with_comms_counts(project, cases: str) -> None:
    text = project.failure(cases)
    assert "1 failed, 4 passed" in text
    assert "found: total 1, expected 0" in text


def test_a_folder_that_all_ranks_share_is_set_up(project) -> None:
    project.passes(f"""
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.testing._internal.distributed.checkpoint_utils import with_temp_dir

class TestIt(DTensorTestBase):
    world_size = 2
    {FORKING}
    @pytest.mark.comms(all_reduce=1, exact=True)
    @with_comms
    @with_temp_dir
    def test_one_reduction(self):
        assert self.temp_dir
        reduce()
""")


@pytest.mark.parametrize("module", HARNESSES)
def test_each_function_of_a_harness_that_is_named_communicates(module: str) -> None:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    functions: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, set()).update(_methods_called_in(node))
    for name in HARNESSES[module]:
        assert functions[name] & {"barrier", "broadcast_object_list"}, name


def _methods_called_in(function: ast.FunctionDef) -> set[str]:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {each.attr for each in calls if isinstance(each, ast.Attribute)}


def test_a_trace_says_what_is_the_harness_s(project) -> None:
    project.passes("""
from dtensor_core.testing import DTensorOpTestBase, with_comms

class TestIt(DTensorOpTestBase):
    world_size = 2

    @with_comms
    def body(self):
        reduce()

@pytest.mark.comms(all_reduce=1, exact=True)
def test_it(comms):
    case = TestIt("body")
    case.body()
    assert comms.counts() == {"all_reduce": 1}
    table = comms.table()
    assert dict(zip(table["kind"], table["carries"])) == {"all_reduce": "", "barrier": "harness"}
""")
