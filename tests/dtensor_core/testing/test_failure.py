"""Text of a failure: the full cause first, repeated errors once, the rest after."""

from __future__ import annotations

from dtensor_core.testing import Outcome, RankFailure, RankReport
from dtensor_core.testing.failure import describe, summarize


def test_the_full_text():
    reports = [
        RankReport(2, Outcome.FAILED, "ValueError: no", "Traceback\n  line 1\n", "printed\n"),
        RankReport(0, Outcome.FAILED, "ValueError: no", "Traceback\n  line 1\n", "too\n"),
        RankReport(1, Outcome.RELEASED, "it waited for barrier", "  line 2\n"),
        RankReport(3, Outcome.FAILED, "ValueError: no", "Traceback\n  line 9\n"),
    ]
    assert describe(reports, 4) == (
        "rank 2 failed: ValueError: no (world size 4)\n"
        "\n"
        "---- cause: rank 2 failed: ValueError: no\n"
        "Traceback\n"
        "  line 1\n"
        "---- output of rank 2\n"
        "printed\n"
        "\n"
        "the same on rank 0\n"
        "---- output of rank 0\n"
        "too\n"
        "\n"
        "---- after that: rank 1 was released: it waited for barrier\n"
        "  line 2\n"
        "\n"
        "---- after that: rank 3 failed: ValueError: no\n"
        "Traceback\n"
        "  line 9"
    )


def test_a_failure_blames_the_first_rank_and_counts_as_a_failed_assertion():
    failure = RankFailure([RankReport(3, Outcome.DIED, "exit code 1")], 4)
    assert failure.rank == 3
    assert isinstance(failure, AssertionError)


def test_a_summary_is_one_line():
    assert summarize(ValueError("first\nsecond")) == "ValueError: first"
    assert summarize(KeyError()) == "KeyError"
