"""Rows per call that are kept in files: of parts by rank, and of parts by collectives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze.stored.kept_files import sealed, verified_size
from commtrace.analyze.stored.row_store import RowStore
from commtrace.errors import TraceError

TABLE = pd.DataFrame({"a": np.arange(7), "b": np.linspace(0, 1, 7), "c": np.arange(7) > 3})


def store_of(folder: Path, *stretches: int) -> RowStore:
    return RowStore(folder, np.append(0, np.cumsum(stretches)))


def keep(store: RowStore, name: str, parts: list[pd.Series] | list[pd.DataFrame]) -> None:
    store.complete(name, [store.write(name, piece, part) for piece, part in enumerate(parts)])


@pytest.mark.parametrize(
    "parts",
    [
        [[0, 1, 2], [], [3, 4, 5, 6]],
        [[6, 0, 2], [5, 1], [3, 4]],
        [[0, 1, 2, 3, 4, 5, 6]],
        [[6], [5], [4], [3], [2], [1], [0]],
    ],
)
def test_rows_are_read_as_they_were_written(tmp_path: Path, parts: list[list[int]]) -> None:
    store = store_of(tmp_path, 3, 0, 4)
    assert not store.has("t")
    keep(store, "t", [TABLE.loc[part] for part in parts])
    assert store.has("t")
    for rows in ([*range(7)], [0, 1, 2], [3, 4, 5, 6], [2, 4], [6], []):
        index = pd.Index(rows, dtype="int64")
        found = store.read("t", index)
        assert isinstance(found, pd.DataFrame)
        pd.testing.assert_frame_equal(found, TABLE.loc[index])
        assert [*found] == [*TABLE]
        assert len(found) == len(rows)


@pytest.mark.parametrize("parts", [[[0, 1, 2], [3, 4, 5, 6]], [[6, 0, 2], [5, 1, 3, 4]]])
def test_a_part_reads_the_rows_that_it_has_computed(tmp_path: Path, parts: list[list[int]]) -> None:
    store = store_of(tmp_path, 3, 4)
    keep(store, "t", [TABLE.loc[part] for part in parts])
    for piece, part in enumerate(parts):
        rows = pd.Index(sorted(part))
        pd.testing.assert_frame_equal(store.read_piece("t", piece, rows), TABLE.loc[rows])
    with pytest.raises(TraceError, match=r"00000\.npy"):
        store.read_piece("t", 0, pd.Index([0, 1]))


def test_rows_of_other_calls_are_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path, 3, 4)
    keep(store, "t", [TABLE.loc[::2], TABLE.loc[1::2]])
    with pytest.raises(TraceError, match="rows of other calls"):
        store.read_piece("t", 0, pd.Index([0, 2, 4, 5]))


def test_a_series_remains_one(tmp_path: Path) -> None:
    store = store_of(tmp_path, 3, 4)
    keep(store, "s", [TABLE["a"] > 2])
    found = store.read("s", pd.Index([2, 3]))
    assert isinstance(found, pd.Series)
    assert found.tolist() == [False, True]


def test_rows_of_which_some_parts_are_missing_are_not_there(tmp_path: Path) -> None:
    store = store_of(tmp_path, 3, 4)
    store.write("t", 0, TABLE.loc[:2])
    assert not store.has("t")


@pytest.mark.parametrize("by_rank", [True, False])
def test_a_file_of_rows_that_is_damaged_is_named(tmp_path: Path, by_rank: bool) -> None:
    store = store_of(tmp_path, 3, 4)
    keep(store, "t", [TABLE.loc[:2], TABLE.loc[3:]] if by_rank else [TABLE.loc[::2], TABLE[1::2]])
    np.save(tmp_path / "t" / "00001.npy", np.arange(9))
    with pytest.raises(TraceError, match=r"00001\.npy"):
        store.read("t", pd.RangeIndex(7))


def replace_in(path: Path, before: str, after: str) -> None:
    content = path.read_bytes()[: verified_size(path)]
    with sealed(path) as file:
        file.write(content.replace(before.encode(), after.encode()))


def test_facts_of_rows_that_have_changed_are_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path, 3, 4)
    keep(store, "t", [TABLE.loc[:2], TABLE.loc[3:]])
    path = tmp_path / "t" / "complete.json"
    path.write_bytes(path.read_bytes().replace(b"<f8", b"<i8"))
    with pytest.raises(
        TraceError, match=rf"complete\.json(?s:.*)try: remove {tmp_path}/t, so that"
    ):
        store_of(tmp_path, 3, 4).read("t", pd.RangeIndex(7))


def test_files_of_two_parts_that_were_exchanged_are_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path, 3, 3)
    keep(store, "t", [TABLE.loc[:2], TABLE.loc[3:5]])
    first, second = (tmp_path / "t" / f"0000{part}.npy" for part in (0, 1))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    with pytest.raises(TraceError, match=r"00000\.npy"):
        store.read("t", pd.RangeIndex(6))


@pytest.mark.parametrize("edges", ["[[0, 3]]", "[[0, 1, 2]]", "[]", "3"])
def test_numbers_of_rows_that_cannot_be_are_refused(tmp_path: Path, edges: str) -> None:
    store = store_of(tmp_path, 3, 4)
    keep(store, "t", [TABLE])
    replace_in(tmp_path / "t" / "complete.json", "[[0, 3, 7]]", edges)
    with pytest.raises(TraceError, match=r"complete\.json"):
        store_of(tmp_path, 3, 4).read("t", pd.RangeIndex(7))


def test_types_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path, 3, 4)
    keep(store, "t", [TABLE])
    replace_in(tmp_path / "t" / "complete.json", '"<i8"', '"O"')
    with pytest.raises(TraceError, match=r"complete\.json"):
        store_of(tmp_path, 3, 4).read("t", pd.RangeIndex(7))


@pytest.mark.parametrize(
    ("low", "high", "size"),
    [
        (-1, -1, 1),
        (0, 127, 1),
        (0, 128, 2),
        (-(2**31), 2**31 - 1, 4),
        (-1, 2**31, 8),
        (-(2**63), 2**63 - 1, 8),
    ],
)
def test_integers_take_as_few_bytes_as_they_need(
    tmp_path: Path, low: int, high: int, size: int
) -> None:
    store = store_of(tmp_path, 7)
    values = pd.Series([low, high, low, low, high, high, low])
    keep(store, "s", [values])
    (path,) = tmp_path.rglob("*.npy")
    assert np.load(path).dtype.itemsize == size
    found = store.read("s", values.index)
    assert isinstance(found, pd.Series)
    pd.testing.assert_series_equal(found, values)
