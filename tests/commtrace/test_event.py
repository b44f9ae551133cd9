"""Rows of the tables have the columns of the schema."""

from __future__ import annotations

import math

import pytest

from commtrace.event import ROWS, CommEvent
from commtrace.schema import TABLES, Column


@pytest.mark.parametrize("table", TABLES)
def test_a_row_has_the_columns_of_its_table_in_order(table: str) -> None:
    assert ROWS[table]._fields == tuple(column.name for column in TABLES[table])


def test_a_field_that_is_not_given_is_not_known() -> None:
    event = CommEvent(rank=3)
    assert event.rank == 3
    assert (event.payload_bytes, event.kind, event.is_async) == (-1, "", False)


def test_an_unknown_float_is_not_a_number() -> None:
    assert math.isnan(Column("x", float, "", "").missing)
