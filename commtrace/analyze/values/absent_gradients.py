"""Gradients that a run lacks because its loss does not reach the parameter.

An absent gradient changes nothing when the optimizer steps. It is compared as zero. An optimizer
that updates tensors of the program's own, such as a rank's range of all parameters, has the
gradients of these; those that the backward pass has computed for the model's parameters are then
not absent.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values.global_values import SKETCHES, with_rows
from commtrace.analyze.values.local_gradients import computed_gradients
from commtrace.schema import GRADIENT, PARAMETER

_NUMBERS = (*SKETCHES, "total", "norm", "largest", "num_nan", "num_inf", "apart", "num_differing")
_OF_OTHER = ["name", "module", "module_class", "shape", "dtype", "occurrence"]


def with_absent_gradients(side: pd.DataFrame, other: pd.DataFrame, run: Frames) -> pd.DataFrame:
    """Return table `tensors` with the gradients that only the other run has, as zeros.

    This run has the parameters, too, and other gradients in these steps.

    Args:
        side: table `tensors` of this run.
        other: table `tensors` of the other run.
        run: this run.
    """
    own, others = (each[each["role"] == GRADIENT] for each in (side, other))
    others = others[others["norm"] > 0].drop_duplicates(["step", "name"])
    known = side[side["role"] == PARAMETER].drop_duplicates("name").set_index("name")
    has_own = pd.MultiIndex.from_frame(others[["step", "name"]]).isin(
        pd.MultiIndex.from_frame(own[["step", "name"]])
    )
    absent = others[~has_own & others["name"].isin(known.index)]
    of_step = own.drop_duplicates("step").set_index("step")
    absent = absent[absent["step"].isin(of_step.index)]
    # The other run's optimizer has no such parameters.
    replacing = {*own["step"][~own["name"].isin(other["name"][other["role"] == PARAMETER])]}
    is_computed = pd.MultiIndex.from_frame(absent[["step", "name"]]).isin(computed_gradients(run))
    absent = absent[~(is_computed & absent["step"].isin(replacing).to_numpy())]
    if absent.empty:
        return side
    rows = of_step.loc[absent["step"]].reset_index()
    rows[_OF_OTHER] = absent[_OF_OTHER].to_numpy()
    rows["layout"] = known.loc[absent["name"], "layout"].to_numpy()
    rows[[*_NUMBERS]] = 0
    return with_rows(side, rows.assign(rank=-1, num_ranks=0))
