"""Each import contract of pyproject.toml detects an import that it forbids."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("commtrace", "dtensor_core", "cli/commtrace_cli")

FORBIDDEN = {
    "dtensor_core/debug/explicit.py": ("import commtrace.errors", "Packages:"),
    "commtrace/units.py": ("import commtrace.schema", "commtrace: one way"),
    "commtrace/tracefile/trace.py": ("import torch", "commtrace: reading and reporting"),
    "commtrace/recorder/clock.py": ("import pandas", "commtrace: recording needs"),
    "commtrace/recorder/events/call.py": (
        "import commtrace.recorder.attribution.locator",
        "commtrace.recorder: interception",
    ),
    "commtrace/recorder/thread_state.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import commtrace.recorder.events.call",
        "commtrace.recorder: interception",
    ),
    "commtrace/recorder/bridge.py": ("import dtensor_core.spec", "commtrace: dtensor_core"),
    "dtensor_core/layout.py": ("import dtensor_core.spec", "dtensor_core: one way"),
    "dtensor_core/operators/matmul/rule.py": (
        "import dtensor_core.operators.views.rule",
        "dtensor_core.operators: families",
    ),
    "dtensor_core/operators/rules/call.py": (
        "import dtensor_core.operators.rules.row",
        "dtensor_core.operators.rules: from",
    ),
    "dtensor_core/operators/kernels/local_operator.py": (
        "import dtensor_core.operators.kernels.windows",
        "dtensor_core.operators.kernels: from",
    ),
    "dtensor_core/operators/kernels/windows.py": (
        "import dtensor_core.operators.rules.operands",
        "dtensor_core.operators: local",
    ),
    "dtensor_core/dispatch/special/fallback.py": (
        "import dtensor_core.dispatch.results",
        "dtensor_core.dispatch: the way",
    ),
    "dtensor_core/dispatch/special/materialized_views.py": (
        "import dtensor_core.dispatch.special.inplace_writeback",
        "dtensor_core.dispatch.special: what",
    ),
    "dtensor_core/dispatch/metadata/shortcuts.py": (
        "import dtensor_core.dispatch.metadata.output_metadata",
        "dtensor_core.dispatch.metadata: shortcuts",
    ),
    "dtensor_core/operators/matmul/local.py": (
        "import dtensor_core.operators.rules.call",
        "dtensor_core.operators: local",
    ),
    "dtensor_core/tensor.py": ("import dtensor_core.collectives", "dtensor_core: only what"),
    "commtrace/analyze/run/frame.py": ("import commtrace.analyze.catalog", "No import cycles"),
}


def broken_contracts(folder: Path) -> list[str]:
    """Names of the contracts that the packages in `folder` violate."""
    run = "import sys; sys.path[:0] = ['.', 'cli']; from importlinter.cli import lint_imports; "
    result = subprocess.run(
        [sys.executable, "-c", run + "sys.exit(lint_imports(cache_dir=None))"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Contracts:" in result.stdout, result.stdout + result.stderr
    return re.findall(r"^(.+) BROKEN", result.stdout, re.M)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the packages, for the test to modify."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def test_the_packages_keep_every_contract(checkout: Path) -> None:
    assert broken_contracts(checkout) == []


@pytest.mark.parametrize("file", FORBIDDEN)
def test_a_forbidden_import_breaks_the_contract(checkout: Path, file: str) -> None:
    statement, contract = FORBIDDEN[file]
    with (checkout / file).open("a") as source:
        source.write(f"\n{statement}\n")
    assert any(name.startswith(contract) for name in broken_contracts(checkout))


def test_a_module_that_no_layer_names_is_noticed(checkout: Path) -> None:
    (checkout / "commtrace" / "helpers.py").write_text("")
    (checkout / "dtensor_core" / "helpers.py").write_text("")
    assert len(broken_contracts(checkout)) == 2
