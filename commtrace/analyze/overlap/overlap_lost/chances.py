"""Time by which each call would be hidden: from a replay in which no call loses overlap.

Calls that lost overlap (`reasons.LOST`) are all issued, and waited for, as the cures of their
reasons have it (`windows`). A call could be hidden by its exposed time as recorded, minus that in
the replay. Of a large run, some steps are replayed (`replay.basis`); other calls count the mean of
the replayed calls of their place and reason.
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
from commtrace.analyze.replay.graph import WorkGraph, replayed
from commtrace.analyze.replay.run_of import calls_of
from commtrace.analyze.replay.verbs import time_to_issue
from commtrace.analyze.run.cached_per_run import cached_per_run, of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.errors import UsageError

PLACE = ["kind", "mesh_axis", "module", "phase", "source_file", "source_line"]


@cached_per_run
def chances(frames: Frames) -> pd.DataFrame:
    """Return the `windows` of the calls of a part, and by how much each `could` be hidden.

    That is in ns; nan if it is unknown, and for calls on a device, which a replay leaves alone.
    """
    calls = windows(frames)
    is_known = calls["beside"].notna() & ~on_device(frames)
    could = _saved_by_calls(frames, calls).where(is_known)
    return calls.assign(could=could.mask(calls["transfer"] == 0, 0.0))


def overlapped(run: Frames) -> WorkGraph:
    """Return the graph of a run in memory in which all calls that lost overlap are overlapped."""
    calls = windows(run)
    rows = calls.index[calls["reason"].isin([*LOST]) & ~on_device(run)]
    draft = Draft(work_graph(run))
    edits.overlap(
        draft,
        rows.to_numpy(),
        ready=calls["issue_at"],
        used=calls["wait_at"],
        issue_ns=time_to_issue(run),
    )
    return draft.graph()


@of_run
def _saved(run: Frames) -> tuple[Frames, pd.Series]:
    """Return the part of a run that was replayed, and the time by which each call is hidden there.

    The times are nan if the run cannot be replayed.
    """
    try:
        basis = basis_of(run)
    except UsageError:  # it is too large, and has no steps
        return run, pd.Series(dtype="float64")
    replay = replayed(overlapped(basis))
    if not replay.times.is_reached.all():  # calls would wait for each other
        return basis, pd.Series(np.nan, index=basis.comm.index)
    before, after = basis.comm["blocked_ns"], calls_of(basis, replay)["blocked_ns"]
    return basis, (before - after).clip(0, before.clip(lower=0)).astype("float64")


def _saved_by_calls(part: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return by how much the calls of a part are hidden in the replay; nan if unknown."""
    basis, saved = _saved(part)
    if basis is part.whole:
        return saved.reindex(calls.index)
    comm, ids = part.comm, ["rank", "id"]
    keys = pd.MultiIndex.from_frame(basis.comm[ids])
    own = saved.set_axis(keys)[~keys.duplicated()]
    found = own.reindex(pd.MultiIndex.from_frame(comm[ids])).to_numpy()
    places = pd.MultiIndex.from_frame(places_of(part, calls["reason"]))
    means = _means_of_places(part).reindex(places).to_numpy()
    return pd.Series(np.where(np.isnan(found), means, found), index=calls.index)


@of_run
def _means_of_places(run: Frames) -> pd.Series:
    """Return the mean time by which the replayed calls of each place and reason are hidden."""
    basis, saved = _saved(run)
    places = places_of(basis, windows(basis)["reason"])
    return saved.groupby([places[name] for name in places]).mean()


def places_of(part: Frames, reason: pd.Series) -> pd.DataFrame:
    """Return the place of each call of a part, with its reason."""
    comm = part.comm
    of = {"mesh_axis": mesh_axes(part, comm["group"]), "reason": reason}
    found = {name: of[name] if name in of else comm[name] for name in (*PLACE, "reason")}
    return pd.DataFrame(
        {
            name: each if each.dtype.kind in "iu" else each.astype(object)
            for name, each in found.items()
        }
    )
