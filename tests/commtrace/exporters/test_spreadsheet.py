"""No text of a trace becomes a formula in a spreadsheet, and each can be restored."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.exporters.spreadsheet import cell, csv_text, text_of_cell, write_csv_rows

FORMULAS = [
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\t", " =1", "\ufeff=1", "\x00=1"),
    *("'=1", "''=1", "＝1", "＋1", "－1", "＠1", "\u200b=1"),  # noqa: RUF001
]
TEXTS = ["", "layers.0", "0:92", "a=b", "it's", "'quoted'", "–", "[8,16]", "aten.mm", "1e-05"]


@pytest.mark.parametrize("text", FORMULAS)
def test_what_looks_like_a_formula_gets_an_apostrophe(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("text", TEXTS)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert cell(text) == text


@pytest.mark.parametrize("number", [-1, -0.5, 3, True])
def test_numbers_stay_numbers(number: float) -> None:
    assert cell(number) is number


@given(st.text(alphabet="'=+-@\t\r\n a1"))
def test_the_text_can_be_had_back(text: str) -> None:
    field = cell(text)
    assert text_of_cell(field) == text
    assert not field.lstrip().startswith(("=", "+", "-", "@"))


@given(st.lists(st.text(alphabet="\r\n\t,\"'=x"), min_size=1))
def test_rows_are_read_back_as_they_were(texts: list[str]) -> None:
    stream = io.StringIO(newline="")
    write_csv_rows(stream, ["text", "number"], [(text, -1) for text in texts])
    heading, *rows = csv.reader(io.StringIO(stream.getvalue(), newline=""))
    assert heading == ["text", "number"]
    assert [(text_of_cell(text), number) for text, number in rows] == [(t, "-1") for t in texts]


def test_a_carriage_return_begins_no_row() -> None:
    frame = pd.DataFrame({"module": ["a\r=cmd|' /c calc'!A1"], "size": [-1]})
    assert csv_text(frame) == "module,size\n\"a\r=cmd|' /c calc'!A1\",-1\n"


def test_a_table_has_numbers_as_they_are_and_empty_fields_for_what_is_missing() -> None:
    frame = pd.DataFrame(
        {
            "kind": pd.Categorical(["-x", ""]),
            "size": [-1, 2],
            "share": [0.5, float("nan")],
            "is_async": [True, False],
        }
    )
    assert csv_text(frame) == "kind,size,share,is_async\n'-x,-1,0.5,True\n,2,,False\n"
