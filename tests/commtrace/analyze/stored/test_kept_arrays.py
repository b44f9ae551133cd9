"""Arrays with an entry for each match that a stored run keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import AcrossRanks, Arrays, matches
from commtrace.analyze.stored.kept_arrays import kept_arrays
from commtrace.errors import TraceError
from tests.commtrace.analyze.rows import call, run_of


def add(part: Frames, into: Arrays) -> None:
    into["_half"][matches(part)] += 1
    np.add.at(into["num"], matches(part), 1)


FACTS = AcrossRanks(add, {"num": (3, "int64"), "share": (np.nan, "float64"), "_half": (0, "int8")})
RUN = run_of([call(seq=0), call(seq=1, id=1), call(seq=1, rank=1)])


def test_the_arrays_are_written_once_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "arrays"
    found = kept_arrays(RUN, FACTS, folder)
    assert found["num"].tolist() == [4, 5]
    assert np.isnan(found["share"]).all()
    assert {path.name for path in folder.iterdir()} == {"num.npy", "share.npy"}
    never = AcrossRanks(pytest.fail, FACTS.fields)  # type: ignore[arg-type]
    assert kept_arrays(RUN, never, folder)["num"].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("value", "kept"),
    [(3.0, "int8"), (-129.0, "int16"), (2.0**30, "int32"), (2.0**40, "float64"), (0.5, "float64")],
)
def test_numbers_have_the_smallest_integers_in_files(
    value: float, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.analyze.stored.kept_arrays._AT_ONCE", 1)
    facts = AcrossRanks(lambda part, into: None, {"value": (value, "float64")})
    found = kept_arrays(RUN, facts, tmp_path / "arrays")["value"]
    assert found.dtype == kept
    assert found.tolist() == [value, value]


def test_arrays_of_a_run_without_calls_are_empty(tmp_path: Path) -> None:
    for _ in range(2):
        found = kept_arrays(run_of([]), FACTS, tmp_path / "arrays")
        assert [len(each) for each in found.values()] == [0, 0]


def test_a_part_of_the_files_is_computed_again(tmp_path: Path) -> None:
    kept_arrays(RUN, FACTS, tmp_path / "arrays")
    (tmp_path / "arrays" / "num.npy").unlink()
    assert kept_arrays(RUN, FACTS, tmp_path / "arrays")["num"].tolist() == [4, 5]


@pytest.mark.parametrize("place", [3, 60, 140, -1])
def test_a_damaged_file_is_an_error_that_names_the_folder(place: int, tmp_path: Path) -> None:
    kept_arrays(RUN, FACTS, tmp_path / "arrays")
    path = tmp_path / "arrays" / "num.npy"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"remove .*arrays, so that it is prepared again"):
        kept_arrays(RUN, FACTS, tmp_path / "arrays")


def test_a_file_of_another_type_is_an_error(tmp_path: Path) -> None:
    kept_arrays(RUN, FACTS, tmp_path / "arrays")
    other = AcrossRanks(add, {"num": (False, "bool"), "share": (np.nan, "float64")})
    with pytest.raises(TraceError, match="an array of int8, not bool"):
        kept_arrays(RUN, other, tmp_path / "arrays")
