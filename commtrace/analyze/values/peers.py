"""Layouts of plain tensors that the same code has elsewhere: in other layers, calls and steps.

Layers of a model run the same code. If the output of one layer is right on all ranks, the output of
another is not a part of a tensor. If it is a sum over ranks that other layers have reduced, the
reduction is missing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values.flow import flow_of
from commtrace.analyze.values.in_parts import IN_PARTS, ranks_parts, shows_little
from commtrace.schema import OUTPUT, OUTPUT_GRADIENT, RESULT

_OF_CODE = ["phase", "role", "name", "op", "layer", "line", "number"]
_OF_VALUE = ["step", "phase", "role", "norm_left", "norm_right", "distance"]


def with_peers(judged: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs with the verdicts that their peers change.

    A wrong tensor of unknown layout is wrong for certain if peers are right on each rank. A sum
    over ranks is wrong if peers were reduced.
    """
    code = judged[["phase", "role", "name", "op"]].assign(
        layer=_without_numbers(judged["module"]) + " " + ours["module_class"].astype(str),
        line=ours["source_file"].astype(str) + ":" + ours["source_line"].astype(str),
        # Operators of the backward pass have the line at which it begins.
        number=theirs["occurrence"].where(theirs["role"] == RESULT, 0),
    )
    is_right = (~judged["is_wrong"] & judged["distance"].notna() & (ours["norm"] != 0)).to_numpy()
    is_sum = judged["is_sum"].to_numpy()
    is_in_parts = (theirs["layout"] == IN_PARTS).to_numpy()
    is_whole = is_right & ~is_sum & (theirs["layout"] != "").to_numpy()
    shows = ~shows_little(theirs, judged["tolerance"].to_numpy(), judged["distance"].to_numpy())
    code = code.assign(whole=is_whole, shown=is_whole & shows, sums=is_sum, is_in_parts=is_in_parts)
    groups = code.groupby([*_OF_CODE, "is_in_parts"], sort=False)
    num_whole, num_shown = (groups[name].transform("sum").to_numpy() for name in ("whole", "shown"))
    num_sums = groups["sums"].transform("sum").to_numpy()
    # Several results alike may be sums of other things, such as of gradients and of statistics.
    is_unreduced = is_sum & (num_whole >= num_sums) & ~judged["is_ambiguous"].to_numpy()
    is_learned = judged["is_wrong"].to_numpy() & (num_shown > 0) & (num_sums == 0)
    is_learned &= judged["role"].isin((OUTPUT, OUTPUT_GRADIENT)).to_numpy()
    return judged.assign(
        is_wrong=judged["is_wrong"] | is_unreduced,
        is_certain=judged["is_certain"] | is_unreduced | is_learned,
    )


def _without_numbers(names: pd.Series) -> pd.Series:
    return names.astype(str).str.replace(r"(?<![^.])\d+(?![^.])", "#", regex=True)


def unreduced_before(
    place: int, judged: pd.DataFrame, labels: np.ndarray, table: pd.DataFrame, run: Frames
) -> int:
    """Return the place of the sum over ranks that was not reduced before a wrong tensor.

    It is the first output of a module, or else result of an operator, that the tensor was computed
    from without communication. If there is none, it is the place of the tensor itself.

    Args:
        place: of the wrong tensor.
        judged: pairs in order of time.
        labels: numbers of the second run's tensors in `parts`.
        table: table `tensors` of the second run.
        run: the second run.
    """
    is_sum = (judged["is_sum"] & ~judged["is_wrong"]).to_numpy()
    by_label = {int(labels[each]): int(each) for each in np.flatnonzero(is_sum[:place])}
    # A module that returns what another one does has its gradient observed after that one's.
    is_alike = (judged[_OF_VALUE] == judged[_OF_VALUE].iloc[place]).all(axis=1).to_numpy()
    own = ranks_parts(table)(labels[is_alike])
    blocked = {*labels[~is_sum & judged["distance"].notna().to_numpy()].tolist()}
    found = flow_of(run).sources_alone(own, {*by_label}, blocked)
    sums = [by_label[each] for each in found]
    outputs = [each for each in sums if judged["role"].iloc[each] != RESULT]
    # The contributions to a gradient are results, which are sums until it is reduced.
    return min(outputs or sums * (judged["role"].iloc[place] == RESULT), default=place)
