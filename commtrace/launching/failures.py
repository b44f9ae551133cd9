"""Line and advice of an error that ended a rank."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_ON_CPU = 'backend "gloo" and device "cpu", or torch that is built for this machine\'s GPUs'
_ADVICE = {
    "have NCCL built in|_cuda_setDevice|not compiled with CUDA|No CUDA GPUs|no GPUs found|"
    "NVIDIA driver": _ON_CPU,
    "invalid device ordinal|Duplicate GPU detected": (
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])), and --nproc up to the number of GPUs'
    ),
}


def error_of(traceback: str) -> str:
    r"""Return the first line of the error that a traceback ends with; empty if there is none.

    >>> error_of(f"{_TRACEBACK}\n  File 'x.py', line 1, in <module>\nValueError: two\nlines")
    'ValueError: two'
    """
    lines = traceback.splitlines()
    begins = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    after = lines[begins[-1] + 1 :] if begins else lines
    return next((line for line in after if line and not line.startswith(" ")), "")


def advice_on(error: str) -> str:
    """Return what to try if this machine lacks what the program asks; empty if it is not that."""
    return next((advice for found, advice in _ADVICE.items() if re.search(found, error)), "")
