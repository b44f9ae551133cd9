"""Tables of parts that are kept in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze.stored.part_tables import PartTables
from commtrace.errors import TraceError

TABLE = pd.DataFrame(
    {
        "delay_ns": np.array([5, 2**62], dtype="int64"),
        "work_ns": [0.5, np.nan],
        "is_late": [True, False],
        "kind": pd.Categorical(["send", "recv"], categories=["all_reduce", "recv", "send"]),
        "reason": np.array(["longer work", ""], dtype=object),
    },
    index=pd.Index([7, 3], name="collective"),
)


def refuse() -> pd.DataFrame:
    raise AssertionError("a table is computed again")


@pytest.mark.parametrize("part", [None, 0, 12])
@pytest.mark.parametrize("table", [TABLE, TABLE[:0].drop(columns="kind"), TABLE.rename_axis(None)])
def test_a_table_is_computed_once_and_read_as_it_was(
    tmp_path: Path, part: int | None, table: pd.DataFrame
) -> None:
    first = PartTables(tmp_path).kept("t", part, lambda: table)
    assert first is table
    again = PartTables(tmp_path).kept("t", part, refuse)
    pd.testing.assert_frame_equal(again, table, check_dtype=not table.empty)


def test_each_part_has_its_own(tmp_path: Path) -> None:
    tables = PartTables(tmp_path)
    for part in (None, 0, 1):
        tables.kept("t", part, lambda part=part: TABLE.assign(part=-1 if part is None else part))
    for part in (None, 0, 1):
        assert set(tables.kept("t", part, refuse)["part"]) == {-1 if part is None else part}
    assert tables.kept("other", 0, lambda: TABLE) is TABLE


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    PartTables(tmp_path).kept("t", 0, lambda: TABLE)
    (path,) = tmp_path.rglob("*.arrow")
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[::-1]):
        path.write_bytes(content)
        with pytest.raises(TraceError, match="what is prepared"):
            PartTables(tmp_path).kept("t", 0, refuse)


def test_a_table_that_can_not_be_written_is_computed_again(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file")
    for _ in range(2):
        assert PartTables(tmp_path).kept("t", 0, lambda: TABLE) is TABLE
