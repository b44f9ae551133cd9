"""Line and advice of the error that ended a rank."""

from __future__ import annotations

from commtrace.launching.failures import advice_on, error_of

CHAINED = """Traceback (most recent call last):
  File "train.py", line 3, in load
    read()
OSError: no such shard

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
    load()
RuntimeError: shapes differ:
\texpected 3
got 4
"""


def test_the_error_is_the_first_line_after_the_last_traceback() -> None:
    assert error_of(CHAINED) == "RuntimeError: shapes differ:"
    assert error_of("") == ""
    assert error_of("  only frames\n") == ""


def test_a_torch_without_nccl_is_advised_to_use_gloo() -> None:
    assert 'backend "gloo"' in advice_on("Distributed package doesn't have NCCL built in")


def test_ranks_on_one_device_are_advised_to_set_theirs() -> None:
    assert "LOCAL_RANK" in advice_on("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0")


def test_other_errors_get_no_advice() -> None:
    assert advice_on("ValueError: batch size 3") == ""
