"""Tests written for torch's harness pass and fail as they do there."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

import pytest
import torch

from dtensor_core.testing import DEVICE_TYPE, NUM_DEVICES
from tests.dtensor_core.testing import ported

ROOT = Path(__file__).parents[3]
PASS = [
    (ported.OnProcesses, "test_passes"),
    (ported.OnProcesses, "test_passes_with_arguments"),
    (ported.OnProcesses, "test_subtests"),
    (ported.OnProcesses, "test_makes_its_own_group"),
    (ported.OldInit, "test_passes"),
    (ported.OldInit, "test_nothing"),
    (ported.OnThreads, "test_passes"),
    (ported.OnThreads, "test_passes_with_comms"),
    (ported.OnThreads, "test_looks_at_one_rank"),
]
FAIL = [
    (ported.OnProcesses, "test_fails_on_one_rank", "rank 1 failed: AssertionError: Scalars are"),
    (ported.OnProcesses, "test_raises", "KeyError: 'everywhere'"),
    (ported.OnProcesses, "test_subtest_fails", "AssertionError: 12 not less than 6"),
    (ported.OnThreads, "test_fails_on_one_rank", "rank 1 failed: AssertionError: Scalars are"),
    (
        ported.OnThreads,
        "test_looks_at_one_rank_and_fails",
        "rank 1 failed: AssertionError: Scalars are",
    ),
    (ported.OnThreads, "test_op_fails", "AssertionError: Scalars are not close!"),
    (ported.NeverEnds, "test_never_ends", "rank 1 had not finished: after 0.2 s"),
]
SKIP = [
    (ported.OnProcesses, "test_skips", "not today"),
    pytest.param(
        ported.OnProcesses,
        "test_needs_100_gpus",
        f"needs 100 GPUs, found {torch.cuda.device_count()}",
        marks=pytest.mark.skipif(torch.cuda.device_count() >= 100, reason="has 100 GPUs"),
    ),
    pytest.param(
        ported.OnThreads,
        "test_skips_without_gpus",
        f"needs {NUM_DEVICES} GPUs, found {torch.cuda.device_count()}",
        marks=pytest.mark.skipif(DEVICE_TYPE == "cuda", reason="has GPUs"),
    ),
]


def run(case_class: type[unittest.TestCase], method: str) -> unittest.TestResult:
    result = unittest.TestResult()
    case_class(method).run(result)
    assert result.testsRun == 1
    return result


@pytest.mark.parametrize(("case_class", "method"), PASS)
def test_passes(case_class, method):
    result = run(case_class, method)
    assert (result.failures, result.errors, result.skipped) == ([], [], [])


@pytest.mark.parametrize(("case_class", "method", "text"), FAIL)
def test_fails(case_class, method, text):
    result = run(case_class, method)
    assert (result.errors, result.skipped) == ([], [])
    assert text in result.failures[0][1]


@pytest.mark.parametrize(("case_class", "method", "text"), SKIP)
def test_skips(case_class, method, text):
    result = run(case_class, method)
    assert (result.failures, result.errors) == ([], [])
    assert result.skipped[0][1] == text


def test_cleanups_are_done_on_each_rank(capsys):
    assert run(ported.OnProcesses, "test_cleans_up").wasSuccessful()
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] cleaned up by rank 0",
        "[rank 1] cleaned up by rank 1",
    ]


def test_the_test_runner_is_no_rank():
    case = ported.OnProcesses("test_passes")
    assert case.rank == case.MAIN_PROCESS_RANK == -1
    with pytest.raises(RuntimeError, match="call init_pg on a rank"):
        case.init_pg()


SCRIPT = """
import torch.distributed as dist
from dtensor_core.testing import DTensorTestBase, run_tests, with_comms

class InAScript(DTensorTestBase):
    world_size = 2

    @with_comms
    def test_rank(self):
        self.assertEqual(dist.get_world_size(), 2)

if __name__ == "__main__":
    run_tests()
"""


@pytest.mark.usefixtures("preloaded")
def test_a_script_of_tests_runs_them(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(file), "InAScript.test_rank"],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Ran 1 test" in ended.stderr
