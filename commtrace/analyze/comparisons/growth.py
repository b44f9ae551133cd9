"""Growth across several runs by module, kind and line, with the first run as the baseline.

Numbers are per rank, as in `comparisons.diff`: means over each run's ranks and, if all runs
mark steps, per step for calls within steps (`scope` "step"). A size or time that a run does not
know, or knows for only a part of a place's calls, is nan, unless all runs know it for an equal
part. A place at which a run does not communicate counts 0.

    baseline    2 ranks, layers.0 10 calls    layers.1 10 calls
    candidate   4 ranks, layers.0 10 calls    layers.1 12 calls

gives the module table `layers 20 22`, `layers.1 10 12`, `layers.0 10 10`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.comparisons.diff import (
    KNOWN,
    MEASURED,
    in_steps_of_all,
    known_part,
    per_rank,
)
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.program_folder import program_folder, relative_to
from commtrace.analyze.traffic.by_module import ancestors, natural_key

_SUMMED = [*MEASURED, *KNOWN.values()]
_FUNCTION = ["source_file", "source_function"]
_LINE = [*_FUNCTION, "source_line"]


@dataclass(frozen=True, slots=True)
class Grown:
    """A place across all runs.

    Attributes:
        name: The place: a module's path, a kind, or a line.
        detail: Function of a line, and its numbers in other runs if they differ.
        scope: "step" if values are per step, else "run".
        values: For each measure, a number per run.
    """

    name: str
    detail: str
    scope: str
    values: dict[str, tuple[float, ...]]

    def growth(self, measure: str) -> float:
        """Return the largest change from the baseline, with its sign; 0 if none is known."""
        first, *others = self.values[measure]
        known = [value - first for value in others if value == value and first == first]
        return max(known, key=abs, default=0.0)


def totals(runs: Sequence[Frames]) -> list[Grown]:
    """Return all communication of the runs: a row within steps and a row outside of steps."""
    return _grown([table.assign(place="").set_index("place", append=True) for table in _sums(runs)])


def by_kind(runs: Sequence[Frames]) -> list[Grown]:
    """Return growth by kind of communication."""
    return _grown(_sums(runs, "kind"))


def by_module(runs: Sequence[Frames]) -> list[Grown]:
    """Return growth by module, each including its submodules.

    A module is left out if a submodule has the same numbers.
    """
    rows = _grown([_inclusive(table) for table in _sums(runs, "module")])
    inner: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for path in ancestors(row.name)[1:-1]:
            # As text, since nan is not equal to itself.
            inner.setdefault((row.scope, path), set()).add(repr(row.values))
    return [row for row in rows if repr(row.values) not in inner.get((row.scope, row.name), ())]


def by_line(runs: Sequence[Frames]) -> list[Grown]:
    """Return growth by line of the program.

    If a function communicates from the same number of lines in every run, lines are matched by
    their order within the function, so that an edit above them does not matter. Otherwise they are
    matched by line number.
    """
    sums = _sums(runs, *_LINE)
    lines = [_lines(table) for table in sums]
    counts = pd.concat([each.groupby(_FUNCTION)["source_line"].nunique() for each in lines], axis=1)
    moved = counts.index[counts.nunique(axis=1, dropna=False) == 1]
    keyed = [_with_key(each, moved) for each in lines]
    by_key = [
        table.reset_index().merge(each, on=_LINE).set_index(["scope", *_FUNCTION, "key"])[_SUMMED]
        for table, each in zip(sums, keyed, strict=True)
    ]
    line_numbers = [_numbers_by_key(each) for each in keyed]
    folders = {program_folder(run) for run in runs}
    return _grown(by_key, lambda place: _line_text(place, line_numbers, folders))


def _inclusive(table: pd.DataFrame) -> pd.DataFrame:
    """Return sums by module, each including its submodules."""
    flat = table.reset_index()
    flat["module"] = [ancestors(path)[1:] or [""] for path in flat["module"]]
    by_path = flat.explode("module").groupby(["scope", "module"])
    return by_path[_SUMMED].sum(min_count=1)


def _lines(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that communicate, in order."""
    lines = table.index.to_frame(index=False)[_LINE]
    return lines.drop_duplicates().sort_values(_LINE, ignore_index=True)


def _with_key(lines: pd.DataFrame, moved: pd.Index) -> pd.DataFrame:
    """Add the key that lines are matched by: position within the function, or line number."""
    is_moved = pd.MultiIndex.from_frame(lines[_FUNCTION]).isin(moved)
    # Negative, so that a position cannot equal a line number.
    place = -1 - lines.groupby(_FUNCTION).cumcount()
    return lines.assign(key=place.where(is_moved, lines["source_line"]))


def _numbers_by_key(lines: pd.DataFrame) -> dict[Any, int]:
    """Return the line number for each key of `_with_key`."""
    keys = lines[[*_FUNCTION, "key"]].itertuples(index=False, name=None)
    return dict(zip(keys, lines["source_line"].tolist(), strict=True))


def _line_text(
    place: tuple[Any, ...], numbers: Sequence[Mapping[Any, Any]], folders: Iterable[str]
) -> tuple[str, str]:
    """Format a line as `train.py:42`, with its function and its differing numbers in other runs."""
    file, function = str(place[0]), str(place[1])
    if not file:
        return "(line not known)", ""
    lines = [int(each[place]) for each in numbers if place in each]
    others = [str(line) for line in dict.fromkeys(lines) if line != lines[0]]
    moved = f", line {' and '.join(others)} in another run" if others else ""
    for folder in folders:
        file = relative_to(folder, file)
    return f"{file}:{lines[0]}", (f"in {function}" if function else "") + moved


def _sums(runs: Sequence[Frames], *by: str) -> list[pd.DataFrame]:
    """Return each run's measures per rank, by scope and columns of its calls."""
    per_step = in_steps_of_all(runs)
    return [per_rank(frames, by, per_step) for frames in runs]


def _grown(
    sums: Sequence[pd.DataFrame], text: Callable[[tuple[Any, ...]], tuple[str, str]] | None = None
) -> list[Grown]:
    """Return a row per place of any run, the largest growth in bytes, calls or time first."""
    places = list(dict.fromkeys(place for table in sums for place in table.index))
    aligned = []
    for table in sums:
        values_of_run = table.reindex(pd.MultiIndex.from_tuples(places, names=table.index.names))
        values_of_run.loc[~values_of_run.index.isin(table.index)] = 0.0
        aligned.append(values_of_run)
    for name in KNOWN:
        _clear_partly_known(aligned, name)
    rows = []
    for number, (scope, *place) in enumerate(places):
        name, detail = text(tuple(place)) if text else (str(place[0]), "")
        values = {
            measure: tuple(float(table[measure].iloc[number]) for table in aligned)
            for measure in MEASURED
        }
        rows.append(Grown(name, detail, str(scope), values))
    order = ("wire_bytes", "calls", "blocked_ns")
    return sorted(
        rows,
        key=lambda row: (*(-row.growth(measure) for measure in order), natural_key(row.name)),
    )


def _clear_partly_known(aligned: Sequence[pd.DataFrame], name: str) -> None:
    """Make a measure unknown where it covers a part of the calls that differs between runs."""
    parts = pd.DataFrame({number: known_part(each, name) for number, each in enumerate(aligned)})
    differs = parts.max(axis=1) - parts.min(axis=1) > 1e-9
    for number, each in enumerate(aligned):
        each.loc[differs & (parts[number] < 1), name] = float("nan")
