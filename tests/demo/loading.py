"""Load the example as a module, although examples/ is not a package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

TRAIN_TP = Path(__file__).parents[2] / "examples" / "train_tp.py"


def load_example() -> ModuleType:
    """Load examples/train_tp.py as a new module."""
    spec = importlib.util.spec_from_file_location("train_tp", TRAIN_TP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
