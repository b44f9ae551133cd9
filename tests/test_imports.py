"""Modules that a fresh interpreter loads with each part of the project.

Recording runs inside a training program, so it must not load what only reports need. A trace is
read on a laptop, so that must not need torch. `dtensor_core` must not depend on the rest. Import
contracts (pyproject.toml) check the same for written imports; these tests check the loaded modules.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RECORDING = """
import commtrace
with commtrace.record():
    import torch
    torch.ones(2) + 1
"""
READING = """
import commtrace.tracefile, commtrace.analyze, commtrace.figures, commtrace.report
from commtrace import load, read_trace, merge_spools
from commtrace.analyze.catalog import CATALOG
from commtrace.report import write_report
"""
ASKING = """
import sys
from commtrace_cli.main import app, main
sys.argv = ["commtrace", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
SHARDING = """
import dtensor_core
from dtensor_core import DTensor, Replicate, Shard, distribute_tensor
import dtensor_core.parallel
import dtensor_core.testing
"""
SHARDING_AND_MORE = f"{SHARDING}\nimport torch.distributed.tensor, commtrace.errors"
TESTING = """
import commtrace.pytest_plugin
"""

PLOTS_AND_PROMPTS = ("pandas", "plotly", "typer", "rich", "jinja2")
HEAVY_PARTS_OF_TORCH = ("torch.distributed.fsdp", "torch._dynamo", "torch._inductor")
TRAINERS = ("transformers", "accelerate", "lightning", "pytorch_lightning")
OUR_DTENSOR = ("dtensor_core",)
TORCH_DTENSOR = ("torch.distributed.tensor", "torch.distributed._tensor")


@functools.cache
def loaded_modules(program: str) -> frozenset[str]:
    """Names in sys.modules after `program` has run in a new interpreter."""
    report = "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    path = f"import sys\nsys.path[:0] = {[str(ROOT), str(ROOT / 'cli')]!r}\n"
    result = subprocess.run(
        [sys.executable, "-c", path + program + report],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return frozenset(json.loads(result.stdout.splitlines()[-1]))


def unwanted(program: str, packages: tuple[str, ...]) -> set[str]:
    """Modules that `program` loads from `packages`."""
    return {
        name
        for name in loaded_modules(program)
        for package in packages
        if name == package or name.startswith(f"{package}.")
    }


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        pytest.param(RECORDING, PLOTS_AND_PROMPTS, id="recording loads no pandas, plotly or typer"),
        pytest.param(RECORDING, HEAVY_PARTS_OF_TORCH, id="recording loads no FSDP and no compiler"),
        pytest.param(RECORDING, TRAINERS, id="recording loads no trainer"),
        pytest.param(READING, ("torch",), id="reading and reporting load no torch"),
        pytest.param(ASKING, ("torch", "pandas", "plotly"), id="help loads nothing heavy"),
        pytest.param("import commtrace", ("torch", "numpy"), id="commtrace alone loads nothing"),
        pytest.param(TESTING, ("torch", "numpy", "pandas"), id="pytest's plugin loads nothing"),
        pytest.param(SHARDING, TORCH_DTENSOR, id="dtensor_core loads nothing of torch's DTensor"),
        pytest.param(SHARDING, ("commtrace",), id="dtensor_core loads no commtrace"),
    ],
)
def test_what_is_not_needed_is_not_loaded(program: str, packages: tuple[str, ...]) -> None:
    assert not unwanted(program, packages)


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        pytest.param(f"{RECORDING}\nimport plotly", PLOTS_AND_PROMPTS, id="recording"),
        pytest.param(
            f"{RECORDING}\nimport torch.distributed.fsdp", HEAVY_PARTS_OF_TORCH, id="FSDP"
        ),
        pytest.param(f"{RECORDING}\nimport accelerate", TRAINERS, id="a trainer"),
        pytest.param(f"{READING}\nimport torch", ("torch",), id="reading"),
        pytest.param(f"{ASKING}\nimport pandas", ("torch", "pandas", "plotly"), id="help"),
        pytest.param("import commtrace, numpy", ("torch", "numpy"), id="commtrace alone"),
        pytest.param(f"{TESTING}\nimport numpy", ("torch", "numpy", "pandas"), id="plugin"),
        pytest.param(SHARDING_AND_MORE, TORCH_DTENSOR, id="torch's DTensor"),
        pytest.param(SHARDING_AND_MORE, ("commtrace",), id="commtrace"),
    ],
)
def test_what_is_loaded_is_noticed(program: str, packages: tuple[str, ...]) -> None:
    assert unwanted(program, packages)


def mentions(source: str, packages: tuple[str, ...]) -> list[str]:
    """Modules of `packages` that a source text imports, or looks up by name."""
    named: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            named.append(ast.unparse(node))
        elif isinstance(node, ast.Call):
            named += [a.value for a in node.args if isinstance(a, ast.Constant) and a.value]
    return [
        name
        for name in named
        for package in packages
        if isinstance(name, str) and (name == package or name.startswith(f"{package}."))
    ]


def test_no_file_of_dtensor_core_names_torchs_dtensor() -> None:
    files = sorted((ROOT / "dtensor_core").rglob("*.py"))
    assert files
    found = {
        str(file.relative_to(ROOT)): mentions(file.read_text(), TORCH_DTENSOR) for file in files
    }
    assert not {file: names for file, names in found.items() if names}


def test_only_the_bridge_of_commtrace_looks_at_dtensor_core_and_sees_observe() -> None:
    files = sorted([*(ROOT / "commtrace").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])
    found = {str(file.relative_to(ROOT)): mentions(file.read_text(), OUR_DTENSOR) for file in files}
    seen = {file: set(names) for file, names in found.items() if names}
    assert seen == {"commtrace/recorder/bridge.py": {"dtensor_core.observe"}}


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed.tensor",
        "from torch.distributed import tensor",
        "from torch.distributed.tensor.parallel import loss_parallel",
        "import importlib\nimportlib.import_module('torch.distributed.tensor')",
        "import torch\ntorch.distributed.tensor.DTensor",
        "from torch.distributed._tensor import DTensor",
    ],
)
def test_every_way_to_torchs_dtensor_is_noticed(source: str) -> None:
    assert mentions(source, TORCH_DTENSOR)


def test_what_only_begins_alike_is_left_alone() -> None:
    assert not mentions("from torch.distributed import tensorboard", TORCH_DTENSOR)
    assert not mentions("import torch\ntorch.distributed.tensors", TORCH_DTENSOR)
