"""Communication between the last tensor that agrees and a wrong tensor.

A tensor computed in a module depends on the communication since the last tensor that agrees, and on
earlier communication in modules where no later tensor, of theirs or of their parts, agrees; and on
exchanges after which only tensors in parts agree. A gradient is observed when the optimizer steps,
after the gradients of other parameters. It depends on the communication before the rank's own
backward pass computed it, and on the reductions that carried it afterwards, until it was first seen
reduced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.carried import parameters_of
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.values.flow import flow_of
from commtrace.analyze.values.global_values import parts
from commtrace.analyze.values.in_parts import IN_PARTS, ranks_parts, shows_little
from commtrace.schema import GRADIENT, LOCAL_GRADIENT, STATE, UNCLIPPED, UPDATED

_MOST = 5
_MOST_JUDGED = 64
_NAMES = (
    "kind", "phase", "module", "group", "reduce_op", "op", "argument", "source_spec",
    "target_spec", "reason", "source_file", "source_line", "parameters",
)  # fmt: skip
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_EXCHANGES = (
    "all_to_all", "all_gather", "reduce_scatter", "gather", "scatter", "send", "recv", "batch",
)  # fmt: skip
_SCALARS = ("[]", "[1]", "")
"""Shapes of losses and norms, which are no gradients."""
REDUCED = (UNCLIPPED, GRADIENT)
"""Roles of a gradient behind its reduction."""
_OF_GRADIENTS = (LOCAL_GRADIENT, *REDUCED)
_AFTER_BACKWARD = (*REDUCED, UPDATED, STATE)


def communication_before(
    agreeing: pd.DataFrame, wrong: pd.Series, table: pd.DataFrame, run: Frames
) -> tuple[dict[str, Any], ...]:
    """Return the first rank's calls that led to a wrong tensor, merged if adjacent and equal.

    `axis` is the mesh axis, `has_carried` is true if the call reduced the gradient itself,
    `is_right` if a right tensor was computed from its result, and `count` the number of calls.

    Args:
        agreeing: tensors of the run before it that agree, and their `tolerance`.
        wrong: the tensor.
        table: all tensors of the run.
        run: the run that has it.
    """
    comm = run.comm
    rank = int(parts(run)["rank"].min())
    own = comm[(comm["rank"] == rank) & (comm["step"] == wrong["step"])]
    own = own.assign(parameters=parameters_of(run, own))
    of = _of_gradient if wrong["role"] in REDUCED else _of_tensor
    found = of(own, agreeing, wrong, run)
    # Parts of ranks show little: a wrong collective may have exchanged them.
    is_in_parts = (agreeing["layout"] == IN_PARTS).to_numpy()
    shows = ~shows_little(agreeing, agreeing["tolerance"].to_numpy())
    right = {*agreeing.index[~is_in_parts].tolist()}
    parts_right = ranks_parts(table)(agreeing.index[is_in_parts & shows].to_numpy())
    flow = flow_of(run)
    axes = dict(
        zip(run.groups["name"].astype(str), run.groups["mesh_axis"].astype(str), strict=True)
    )
    described = (
        {
            **{name: _plain(each[name]) for name in _NAMES},
            "axis": axes.get(str(each["group"]), ""),
            "has_carried": each.get("has_carried") is True,
            "is_right": number >= len(found) - _MOST_JUDGED
            and flow.shows_call(
                str(each["module"]), str(each["phase"]), each["issue_ns"], right, parts_right
            ),
        }
        for number, each in enumerate(found.to_dict("records"))
    )
    return tuple(_counted(described))[-_MOST:]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _counted(calls: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield equal adjacent calls as a single call, with their number as `count`."""
    latest: dict[str, Any] | None = None
    count = 0
    for call in calls:
        if call != latest:
            if latest is not None:
                yield {**latest, "count": count}
            latest, count = call, 0
        count += 1
    if latest is not None:
        yield {**latest, "count": count}


def _of_tensor(
    own: pd.DataFrame, agreeing: pd.DataFrame, wrong: pd.Series, _: Frames
) -> pd.DataFrame:
    same = agreeing[agreeing["step"] == wrong["step"]]
    latest: dict[tuple[str, str], int] = {}
    for module, phase, at_ns in zip(same["module"], same["phase"], same["at_ns"], strict=True):
        for outer in _with_outer(str(module)):
            key = outer, str(phase)
            latest[key] = max(latest.get(key, -1), int(at_ns))
    last = int(agreeing["at_ns"].iloc[-1]) if len(agreeing) else -1
    since = [
        min(last, latest.get((str(module), str(phase)), -1)) if phase == wrong["phase"] else last
        for module, phase in zip(own["module"], own["phase"], strict=True)
    ]
    is_before = own["issue_ns"] <= wrong["at_ns"]
    is_hidden = own["kind"].isin(_EXCHANGES) & (own["phase"] == wrong["phase"])
    # Sums and norms of parts do not show whether a call has put elements into the right places.
    whole = same.loc[same["layout"] != IN_PARTS, "at_ns"]
    is_hidden &= own["issue_ns"] > (int(whole.max()) if len(whole) else -1)
    return own[((own["issue_ns"] > since) | is_hidden) & is_before]


def _with_outer(module: str) -> Iterator[str]:
    """Yield a module's path, and the paths of the modules around it."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def _of_gradient(
    own: pd.DataFrame, agreeing: pd.DataFrame, wrong: pd.Series, run: Frames
) -> pd.DataFrame:
    rows = _times(run)
    rows = rows[(rows["name"] == wrong["name"]) & (rows["step"] == wrong["step"])]
    rows = rows[rows["rank"] == parts(run)["rank"].min()]
    reduced = rows.loc[rows["role"].isin(REDUCED), "at_ns"]
    end = int(reduced.min()) if len(reduced) else int(wrong["at_ns"])
    local = rows.loc[(rows["role"] == LOCAL_GRADIENT) & (rows["at_ns"] <= end), "at_ns"]
    earlier = agreeing[~agreeing["role"].isin(_AFTER_BACKWARD) & (agreeing["at_ns"] <= end)]
    if len(local):
        earlier = earlier[earlier["at_ns"] <= local.max()]
    since = int(earlier["at_ns"].max()) if len(earlier) else -1
    computed = int(local.max()) if len(local) else since
    issued = own["issue_ns"]
    before = own[(issued > since) & (issued <= computed)]
    # Parameters that are gathered are compared on their own.
    before = before[before["parameters"].astype(str) == ""]
    carrying = _carrying(own[(issued > computed) & (issued <= end)], wrong)
    return pd.concat([before, carrying.assign(has_carried=True)])


def _gradients(part: Frames) -> pd.DataFrame:
    table = part.fingerprints
    rows = table.loc[table["role"].isin(_OF_GRADIENTS), ["rank", "step", "role", "name", "at_ns"]]
    return rows.astype({"role": str, "name": str})


@cached_per_run
def _times(run: Frames) -> pd.DataFrame:
    """Return when gradients were observed."""
    return joined(run.by_ranks(_gradients))


def _carrying(calls: pd.DataFrame, gradient: pd.Series) -> pd.DataFrame:
    """Return the calls that carried a gradient: by its name, by its shape, or else in a bucket."""
    texts = calls[["parameters", "input_shapes", "output_shapes", "source_spec"]].astype(str)
    name, shape = str(gradient["name"]), str(gradient["shape"])
    is_named = np.array([name in each.split(",") for each in texts["parameters"]], dtype=bool)
    is_unnamed = (texts["parameters"] == "").to_numpy()
    is_planned = np.array([shape in each for each in texts["source_spec"]], dtype=bool)
    is_of_shape = (texts[["input_shapes", "output_shapes"]] == shape).any(axis=1) | is_planned
    is_bucket = (calls["kind"].isin(_REDUCTIONS) & ~texts["input_shapes"].isin(_SCALARS)).to_numpy()
    for chosen in (is_named, is_unnamed & is_of_shape.to_numpy(), is_unnamed & is_bucket):
        if chosen.any():
            return calls[chosen]
    return calls[:0]
