"""Times of the layers of pipeline stages, from the operators that ran in their actions.

A layer is a module with a number, `layers.3`, or a part of the stage without a number, `norm`;
operators of other modules belong to no layer. Its share of the operators' time, in the forward and
the backward pass, gives its part of the stage's median times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames, joined
from commtrace.schema import FORWARD, LOSS_OF_CHUNK

_PASSES = (True, False)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a stage, with its share of the stage's forward and backward time."""

    stage: int
    name: str
    forward: float
    backward: float


def layers_of(frames: Frames, pipeline: Mapping[int, int]) -> dict[int, list[Layer]]:
    """Return the layers of each pipeline, in the order in which they are first called.

    Args:
        frames: The run.
        pipeline: Number of the pipeline of each rank.
    """
    names = ["pipeline", "stage", "layer", "is_forward"]
    rows = joined(frames.by_ranks(_of_ranks))
    if rows.empty:
        return {}
    rows = rows.assign(
        pipeline=rows["rank"].map(pipeline), is_forward=rows["is_forward"].astype("bool")
    )
    grouped = rows.groupby(names, sort=False)
    sums = grouped.agg(time=("time", "sum"), first=("first", "min")).reset_index()
    whole = sums.groupby(["pipeline", "stage", "is_forward"])["time"].transform("sum")
    sums["share"] = sums["time"] / whole
    found: dict[int, list[Layer]] = {}
    shares = sums.pivot_table(
        index=names[:3], columns="is_forward", values="share", aggfunc="sum", fill_value=0.0
    ).reindex(columns=[*_PASSES], fill_value=0.0)
    order = sums[sums["is_forward"]].sort_values(["pipeline", "stage", "first"])
    has_backward = shares[False].groupby(level=[0, 1]).sum() > 0
    for key in order[names[:3]].itertuples(index=False, name=None):
        forward, backward = (float(share) for share in shares.loc[key])
        backward = backward if has_backward.loc[key[:2]] else forward
        found.setdefault(key[0], []).append(Layer(key[1], key[2], forward, backward))
    return found


def _of_ranks(part: Frames) -> pd.DataFrame:
    """Return the time of the outermost operators in each layer, by rank, stage and pass."""
    columns = ["rank", "stage", "layer", "is_forward", "time", "first"]
    tables = [pd.DataFrame({name: pd.Series(dtype="int64") for name in columns})]
    ops = part.ops.loc[part.ops["parent"] < 0, ["rank", "module", "start_ns", "duration_ns"]]
    ops = ops[ops["duration_ns"] >= 0].astype({"module": object})
    for rank, actions in part.pipeline_actions.groupby("rank"):
        own = ops[ops["rank"] == rank]
        actions = actions[actions["stage"] >= 0].sort_values("start_ns")
        if own.empty or actions.empty:
            continue
        begins = actions["start_ns"].to_numpy()
        place = np.searchsorted(begins, own["start_ns"].to_numpy(), side="right") - 1
        ends = begins + actions["duration_ns"].to_numpy()
        is_in = (place >= 0) & (own["start_ns"].to_numpy() < ends[place])
        own, place = own[is_in], place[is_in]
        is_forward = actions["action"].isin([FORWARD, LOSS_OF_CHUNK]).to_numpy()[place]
        rows = pd.DataFrame(
            {
                "rank": rank,
                "stage": actions["stage"].to_numpy()[place],
                "layer": [layer_of(str(module)) for module in own["module"]],
                "is_forward": is_forward,
                "time": own["duration_ns"].to_numpy(),
                "first": own["start_ns"].to_numpy(),
            }
        )
        grouped = rows[rows["layer"] != ""].groupby(columns[:4], sort=False)
        tables.append(grouped.agg(time=("time", "sum"), first=("first", "min")).reset_index())
    return pd.concat(tables) if len(tables) > 1 else tables[0]


def layer_of(module: str) -> str:
    """Return the layer of a module: up to the first number in its path, else its first part.

    >>> layer_of("stage4.layers.3.attention.wq"), layer_of("norm")
    ('stage4.layers.3', 'norm')
    """
    parts = module.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: number + 1])
