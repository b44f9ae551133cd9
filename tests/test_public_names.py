"""dir() of each public package lists its public names and nothing else."""

from __future__ import annotations

import importlib

import pytest

PACKAGES = (
    "commtrace",
    "dtensor_core",
    "dtensor_core.debug",
    "dtensor_core.experimental",
    "dtensor_core.parallel",
    "dtensor_core.testing",
)


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_lists_the_public_names(name: str) -> None:
    package = importlib.import_module(name)
    assert set(dir(package)) - {"__version__"} == set(package.__all__)
    assert all(hasattr(package, each) for each in dir(package))
