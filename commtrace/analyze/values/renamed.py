"""Names of the second run's modules and parameters in the first run, where a rank has others.

A stage of a pipeline may number its layers from 0, and hold a tied weight under a name of its own.
Weights show which layer it is: initially, a parameter has the values of a parameter of the first
run. The number of a layer without such weights is shifted like its neighbours' numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import SKETCHES
from commtrace.schema import GRADIENT, PARAMETER, STATE, UNCLIPPED, UPDATED

_CLOSE = 1e-5
_OF_PARAMETERS = frozenset({PARAMETER, GRADIENT, UNCLIPPED, UPDATED, STATE})
Path = tuple[str, ...]


def renamed(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return table `tensors` of the second run with the names of the first."""
    known = left[left["role"] == PARAMETER].drop_duplicates("name")
    parameters = right[right["role"] == PARAMETER]
    own = parameters[parameters["rank"] >= 0]
    modules = {*left["module"]}
    found = {int(rank): _names(known, rows, modules) for rank, rows in own.groupby("rank")}
    kept = {name for names in found.values() for name in names.kept}
    kept |= {*parameters["name"][parameters["rank"] < 0]}
    # Ranks may hold one stage, but a layer that two stages have may be the fault.
    stages = {tuple(names.moved) for names in found.values()}
    moved = [name for stage in stages for name in stage]
    is_twice = len({*moved} - kept) < len(moved)
    if is_twice or not any(names.paths or names.tied for names in found.values()):
        return right
    table = right.copy()
    for rank, names in found.items():
        is_own = table["rank"] == rank
        rows = table[is_own]
        table.loc[is_own, "module"] = [names.of_module(each) for each in rows["module"]]
        is_parameter = rows["role"].isin(_OF_PARAMETERS)
        table.loc[is_own, "name"] = [
            names.of_parameter(name) if is_one else name
            for name, is_one in zip(rows["name"], is_parameter, strict=True)
        ]
    return table


class _Names:
    """Names of a rank's layers and tied parameters in the first run.

    Attributes:
        paths: by layer, the first run's.
        tied: by parameter, the first run's with the same values, under another module's name.
        moved: the first run's names of the parameters of these layers.
        kept: names of parameters that the first run has, too.
    """

    def __init__(self) -> None:
        self.paths: dict[Path, Path] = {}
        self.tied: dict[str, str] = {}
        self.moved: list[str] = []
        self.kept: list[str] = []

    def of_module(self, module: str) -> str:
        """Return the name of a module in the first run."""
        return ".".join(self._moved(tuple(module.split(".") if module else ())))

    def of_parameter(self, name: str) -> str:
        """Return the name of a parameter, or of its state, in the first run."""
        for own, other in self.tied.items():
            if name == own or name.startswith(f"{own}."):
                return other + name[len(own) :]
        return self.of_module(name)

    def _moved(self, path: Path) -> Path:
        for length in range(len(path), -1, -1):
            start = path[:length]
            if start in self.paths:
                return (*self.paths[start], *path[length:])
            shifted = self._beside(start)
            if shifted is not None:
                return (*shifted, *path[length:])
        return path

    def _beside(self, path: Path) -> Path | None:
        """Return the name of a numbered layer, shifted like all layers beside it."""
        if not path or not path[-1].isdigit():
            return None
        moves = {
            (other[:-1], int(other[-1]) - int(own[-1]))
            for own, other in self.paths.items()
            if own and other and own[:-1] == path[:-1] and own[-1].isdigit() and other[-1].isdigit()
        }
        if len(moves) != 1:
            return None
        parent, shift = moves.pop()
        return (*parent, str(int(path[-1]) + shift))


def _names(known: pd.DataFrame, own: pd.DataFrame, modules: set[str]) -> _Names:
    """Return the names of a rank's layers in the first run; none if they contradict each other."""
    found = _Names()
    of_name = {name: number for number, name in enumerate(known["name"])}
    for row, alike in zip(own.itertuples(), _alike(known, own), strict=True):
        name = str(row.name)
        if of_name.get(name) in alike:
            found.kept.append(name)
        if len(alike) != 1 or of_name.get(name) in alike:
            continue
        other = str(known["name"].iloc[alike[0]])
        if name not in of_name and str(row.module) in modules:
            found.tied[name] = other
            continue
        ours, theirs = _without_common_end(tuple(name.split(".")), tuple(other.split(".")))
        if found.paths.setdefault(ours, theirs) != theirs:
            return _Names()
        found.moved.append(other)
    return found


def _without_common_end(ours: Path, theirs: Path) -> tuple[Path, Path]:
    while ours and theirs and ours[-1] == theirs[-1]:
        ours, theirs = ours[:-1], theirs[:-1]
    return ours, theirs


def _alike(known: pd.DataFrame, own: pd.DataFrame) -> Iterator[list[int]]:
    """Yield, for each parameter of a rank, the places of the first run's with equal values."""
    values = known[[*SKETCHES]].to_numpy("float64")
    shapes, norms = known["shape"].to_numpy(), known["norm"].to_numpy("float64")
    for row in own.itertuples():
        sketches = np.array([getattr(row, name) for name in SKETCHES], dtype="float64")
        apart = np.sqrt(((values - sketches) ** 2).mean(axis=1))
        is_alike = (apart <= _CLOSE * norms) & (shapes == row.shape) & (norms > 0)
        yield np.flatnonzero(is_alike).tolist()
