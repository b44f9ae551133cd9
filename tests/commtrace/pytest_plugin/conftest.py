"""Small projects whose tests are run by a pytest with the plugin that pyproject.toml declares.

Pytest removes the modules that an inner run in this process has loaded. Those of commtrace and
torch are therefore loaded here first, and those that plotly loads when they are needed are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pandas  # noqa: F401
import pytest
import torch
import torch._dynamo
import torch.distributed._functional_collectives
import torch.multiprocessing
import torch.testing._internal.common_distributed  # noqa: F401

import commtrace.pytest_plugin.baseline
import commtrace.pytest_plugin.same_values
import commtrace.pytest_plugin.session_end
import commtrace.pytest_plugin.verdict
import commtrace.report  # noqa: F401
from commtrace import CommDebugMode  # noqa: F401
from commtrace.analyze import CATALOG  # noqa: F401
from commtrace.analyze.comparisons import diff  # noqa: F401
from dtensor_core.testing import fake_world, run_processes, run_threads  # noqa: F401

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[3]

HEAD = """
import pytest
import torch
import torch.distributed as dist

from dtensor_core.testing import fake_world, on_processes, on_threads, run_threads


def reduce(times=1, size=4):
    for _ in range(times):
        dist.all_reduce(torch.ones(size))


"""
"""First lines of every test file of these projects."""


def is_installed() -> bool:
    return any(each.value == "commtrace.pytest_plugin" for each in _declared_here())


def _declared_here() -> list[metadata.EntryPoint]:
    return [each for each in metadata.entry_points(group="pytest11") if each.name == "commtrace"]


class _LoadedByPlotly:
    """A plugin that keeps plotly's modules of an inner run.

    Loaded again, they would have other classes than those that figures already check against.
    """

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}

    def pytest_unconfigure(self) -> None:
        for name, module in sys.modules.items():
            if name.partition(".")[0] in ("plotly", "_plotly_utils"):
                self.modules[name] = module


class Project:
    """A folder with tests, and the output of running them."""

    def __init__(self, pytester: pytest.Pytester, loaded: _LoadedByPlotly) -> None:
        self.pytester = pytester
        self._loaded = loaded
        self.path = pytester.path

    def write(self, body: str, name: str = "test_it.py") -> Path:
        """Write a test file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + body)
        return path

    def ini(self, *lines: str) -> None:
        """Write the ini file."""
        (self.path / "pytest.ini").write_text("\n".join(["[pytest]", *lines, ""]))

    def run(self, *args: str) -> pytest.RunResult:
        """Run the tests in this process."""
        options = ("-p", "no:cacheprovider", "-p", "no:xdist")
        result = self.pytester.runpytest_inprocess(*options, *args, plugins=[self._loaded])
        sys.modules.update(self._loaded.modules)
        return result

    def failure(self, body: str, *args: str) -> str:
        """Run tests that must fail and return the output."""
        self.write(body)
        result = self.run(*args)
        assert result.ret == 1, result.stdout.str()
        return result.stdout.str()

    def passes(self, body: str, *args: str) -> str:
        """Run tests that must pass and return the output."""
        self.write(body)
        result = self.run(*args)
        assert result.ret == 0, result.stdout.str()
        return result.stdout.str()


@pytest.fixture
def loaded() -> Iterator[_LoadedByPlotly]:
    """Modules that inner runs load; set up before `pytester`, whose teardown unloads them."""
    found = _LoadedByPlotly()
    yield found
    sys.modules.update(found.modules)


@pytest.fixture
def project(
    loaded: _LoadedByPlotly, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project in an empty folder, with the plugin installed as pyproject.toml declares."""
    pytester.syspathinsert(ROOT)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'cli'}", prepend=":")
    if not is_installed():
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        info = pytester.path / "site" / "commtrace_here-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: commtrace-here\nVersion: 1\n")
        points = "\n".join(f"{name} = {value}" for name, value in declared["pytest11"].items())
        (info / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")
        pytester.syspathinsert(info.parent)
        monkeypatch.setenv("PYTHONPATH", str(info.parent), prepend=":")
    return Project(pytester, loaded)
