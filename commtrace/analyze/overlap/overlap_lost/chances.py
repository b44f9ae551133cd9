"""Time by which each call could be hidden: from one replay in which calls overlap other work.

All calls are issued and waited for as the cures of their reasons have it (`windows`). A call could
be hidden by its exposed time as recorded, minus that in the replay, and at most by its transfer. Of
a large run, some steps are replayed (`replay.basis`); other calls count the mean of the replayed
calls of their place and reason.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.device import on_device
from commtrace.analyze.overlap.overlap_lost.reasons import LOST
from commtrace.analyze.overlap.overlap_lost.windows import windows
from commtrace.analyze.replay import edits
from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.draft import Draft
from commtrace.analyze.replay.graph import replayed
from commtrace.analyze.replay.run_of import blocked_of
from commtrace.analyze.replay.verbs import time_to_issue
from commtrace.analyze.run.cached_per_run import cached_per_run, of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.errors import UsageError

PLACE = ["kind", "mesh_axis", "module", "phase", "source_file", "source_line"]
_CALL = ["rank", "id"]


@cached_per_run
def chances(frames: Frames) -> pd.DataFrame:
    """Return the `windows` of the calls of a part, and by how much each `could` be hidden.

    That is in ns; nan if it is unknown, and for calls on a device, which a replay leaves alone.
    """
    calls = windows(frames)
    is_known = calls["beside"].notna() & ~on_device(frames)
    could = _saved(frames, calls).where(is_known)
    return calls.assign(could=could.mask(calls["transfer"] == 0, 0.0))


def _saved(part: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return by how much the calls of a part are hidden in the replay; nan if unknown."""
    replayed_calls, means = _replayed(part)
    if not part.whole.is_stored:
        return replayed_calls["saved"].reindex(calls.index)
    own = replayed_calls[replayed_calls["rank"].isin(calls["rank"].unique())]
    saved = own.drop_duplicates(_CALL).set_index(_CALL)["saved"]
    found = saved.reindex(pd.MultiIndex.from_frame(part.comm[_CALL])).to_numpy().copy()
    others = np.flatnonzero(np.isnan(found))
    if len(others) and len(means):
        places = pd.MultiIndex.from_frame(_places(part, calls["reason"]).iloc[others])
        found[others] = means.reindex(places).to_numpy()
    return pd.Series(found, index=calls.index)


@of_run
def _replayed(run: Frames) -> tuple[pd.DataFrame, pd.Series]:
    """Return `rank id saved` of the replayed calls, and means of `saved` by place and reason.

    They have the rows of table `comm` of the replayed part. Means are for a stored run only. Times
    are nan if the run cannot be replayed.
    """
    try:
        basis = basis_of(run)
    except UsageError:  # it is too large, and has no steps
        return pd.DataFrame(columns=[*_CALL, "saved"], dtype="float64"), pd.Series(dtype="float64")
    saved = _less_exposed(basis)
    means = saved[:0]
    if run.is_stored:
        places = _places(basis, windows(basis)["reason"])
        means = saved.groupby([places[name] for name in places]).mean()
    return basis.comm[_CALL].assign(saved=saved), means


def _less_exposed(run: Frames) -> pd.Series:
    """Return the exposed time that each call of a run in memory loses in the replay, in ns.

    It is no wait for a late rank, which another call would wait for instead.
    """
    before = run.comm["blocked_ns"].clip(lower=0).astype("float64")
    calls = windows(run)
    if not calls["reason"].isin([*LOST]).any():
        return 0.0 * before
    draft = Draft(work_graph(run))
    edits.overlap(
        draft,
        calls.index[~on_device(run)].to_numpy(),
        ready=calls["issue_at"],
        used=calls["wait_at"],
        issue_ns=time_to_issue(run),
    )
    replay = replayed(draft.graph())
    if not replay.times.is_reached.all():  # calls would wait for each other in a circle
        return np.nan * before
    less = before - blocked_of(run, replay)
    return less.clip(0, calls["transfer"].fillna(0.0))


def _places(part: Frames, reason: pd.Series) -> pd.DataFrame:
    """Return the places of the calls of a part, as texts and numbers, with their reasons."""
    axes = mesh_axes(part, part.comm["group"])
    table = part.comm[[name for name in PLACE if name != "mesh_axis"]].assign(mesh_axis=axes)
    texts = {name: each.astype(object) for name, each in table.items() if name != "source_line"}
    return table.assign(**texts, reason=reason.astype(object))[[*PLACE, "reason"]]
