"""The questions of docs/sql.md have answers in a run like those that people record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.large_run import Plan, large_trace
from commtrace.views.run import Run, StoredViews, load

QUESTIONS = re.findall(r"```sql\n(.*?)```", Path("docs/sql.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def run() -> Run | StoredViews:
    return load(large_trace(Plan(num_ranks=16, num_calls=40_000)))


def test_there_are_fifteen_questions() -> None:
    assert len(QUESTIONS) == 15


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_question_has_an_answer(number: int, run: Run | StoredViews) -> None:
    found = run.sql(QUESTIONS[number])
    assert len(found)
    assert found.notna().to_numpy().any(axis=0).all(), "a column without any value"


def test_the_late_rank_is_the_one_that_most_is_waited_for(run: Run | StoredViews) -> None:
    assert run.sql(QUESTIONS[0])["waits_for"].iloc[0] == Plan().late_rank
