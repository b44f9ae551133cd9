"""Releases of torch that are too old are rejected with a clear error."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dtensor_core.versions import check_version


@pytest.mark.parametrize("version", ["2.11.0+cu130", "1.13.1", "2.12.0a0+git1234"])
def test_older_releases_are_rejected(version: str) -> None:
    with pytest.raises(ImportError, match=r"needs 2\.13 or newer") as error:
        check_version(version)
    assert version in str(error.value)
    assert "Try: pip install 'torch>=2.13'" in str(error.value)


@pytest.mark.parametrize("version", [torch.__version__, "2.13.0", "2.14.1", "3.0.0", "unknown"])
def test_others_are_accepted(version: str) -> None:
    check_version(version)


def test_without_torch_the_import_says_what_is_needed() -> None:
    program = "import sys; sys.modules['torch'] = None; import dtensor_core"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr.rstrip().endswith(
        "ImportError: dtensor_core needs PyTorch: `pip install torch`"
    )
