"""Names of sets of ranks: axes of meshes, groups that the program made, or the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from commtrace.analyze.gradients.rows import gradient_rows
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import members
from commtrace.analyze.values.stated_mesh import mesh_of
from commtrace.torch_names import TRANSFERS
from commtrace.units import text_of_ranks

_OF_MODELS = ("data", "replicas")
"""Names of the groups of data-parallel models, which are no axes of a mesh."""


@cached_per_run
def known_groups(frames: Frames) -> Mapping[frozenset[int], str]:
    """Return the sets of ranks of groups and of mesh axes, with the names of axes."""
    found: dict[frozenset[int], str] = {}
    for ranks, axis in zip(frames.groups["ranks"], frames.groups["mesh_axis"], strict=True):
        own = frozenset(int(each) for each in str(ranks).split(",") if each.isdigit())
        if len(own) > 1:
            found[own] = found.get(own, "") or str(axis)
    rows = gradient_rows(frames)
    tables = (rows.parameters, *rows.locals.values(), *rows.reduced.values())
    for mesh, placements in {(each.mesh, each.placements) for table in tables for each in table}:
        layout = mesh_of(mesh, placements)
        for axis, name in enumerate(layout.names if layout else ()):
            ranks = np.moveaxis(layout.ranks, axis, -1) if layout else np.empty(0, int)
            for row in ranks.reshape(-1, ranks.shape[-1]):
                own = frozenset(int(rank) for rank in row)
                if len(own) > 1 and name not in _OF_MODELS:
                    found[own] = found.get(own, "") or name
    return found


@cached_per_run
def groups_in_modules(frames: Frames) -> set[frozenset[int]]:
    """Return the sets of ranks of the groups with collectives inside of modules."""
    names = {each for part in frames.by_ranks(_groups_in_modules) for each in part["group"]}
    rows = members(frames)
    of_group = rows[rows["group"].isin(names)].groupby("group")["rank"]
    return {frozenset(ranks.tolist()) for _, ranks in of_group}


def _groups_in_modules(part: Frames) -> pd.DataFrame:
    calls = part.comm
    is_one = (calls["module"] != "") & ~calls["kind"].isin(TRANSFERS)
    return calls.loc[is_one, ["group"]].astype(object).drop_duplicates()


def name_of(groups: Mapping[frozenset[int], str], ranks: Iterable[int]) -> str:
    """Return the name of a set of ranks, `dp (ranks 0-3)`."""
    own = frozenset(ranks)
    text = text_of_ranks(sorted(own))
    name = groups.get(own, "")
    return f"{name} ({text})" if name else text


def sizes_of(groups: Mapping[frozenset[int], str], number: float) -> list[str]:
    """Return the names of mesh axes and groups of so many ranks."""
    names = {
        name or f"a group of {len(ranks)}"
        for ranks, name in groups.items()
        if abs(len(ranks) - number) < 1e-3 * number
    }
    return sorted(names)
