from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Analysis, Frames, load
from tests.commtrace.analyze.rows import random_trace, run_of
from tests.commtrace.analyze.training import training_trace

RUNS = {
    "training": load(training_trace()),
    "random": load(random_trace(3)),
    "empty": run_of(),
    "nothing": run_of(num_ranks=0, groups=[]),
}


def kind_of(dtype: object) -> type:
    if pd.api.types.is_bool_dtype(dtype):
        return bool
    if pd.api.types.is_integer_dtype(dtype):
        return int
    return float if pd.api.types.is_float_dtype(dtype) else str


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("analysis", CATALOG.values(), ids=CATALOG)
def test_a_table_has_the_columns_that_the_catalog_lists(analysis: Analysis, run: str) -> None:
    table = analysis.function(RUNS[run])
    assert list(table.columns) == [column.name for column in analysis.columns]
    found = {name: kind_of(dtype) for name, dtype in table.dtypes.items()}
    assert found == {column.name: column.type for column in analysis.columns}
    assert list(table.index) == list(range(len(table)))


@pytest.mark.parametrize("analysis", CATALOG.values(), ids=CATALOG)
def test_an_analysis_leaves_the_frames_alone(analysis: Analysis) -> None:
    before, after = load(random_trace(3)), load(random_trace(3))
    analysis.function(after)
    for table in ("comm", "ops", "kernels", "groups", "ranks", "steps"):
        pd.testing.assert_frame_equal(getattr(before, table), getattr(after, table))


def test_an_analysis_is_found_by_its_name_and_every_column_says_what_it_means() -> None:
    for name, analysis in CATALOG.items():
        assert analysis.name == name
        assert analysis.question.endswith("?")
        assert all(column.meaning for column in analysis.columns)
        assert len({column.name for column in analysis.columns}) == len(analysis.columns)


def test_shares_of_a_run_s_kinds_add_up_to_the_share_of_all() -> None:
    frames: Frames = RUNS["training"]
    full = CATALOG["by_module"].function(frames).loc[0]
    for name in ("by_kind", "by_phase", "by_op"):
        table = CATALOG[name].function(frames)
        for column in ("num_calls", "payload_bytes", "wire_bytes", "blocked_ns", "share"):
            assert table[column].sum() == pytest.approx(full[column])


def test_analysing_needs_no_torch() -> None:
    program = "import sys, commtrace.analyze; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
