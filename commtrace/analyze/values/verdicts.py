"""Verdicts on the pairs of tensors of two runs, in order of time: equal up to rounding, or wrong.

A pair is wrong if its distance, or a replica's in the second run, exceeds the tolerance there
(`tolerance`), or if the second run has more elements that are not finite. Parameters without
influence, such as the bias of an attention's keys, have gradients that are nothing but rounding
errors, from which an optimizer like Adam makes full-size steps (`noise`).

Distances that are accepted let the tolerance grow, up to the first pair of known layout that is
wrong: what follows may have been computed from it, and its distance is no rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import ALL_EQUAL, KEY, ON_ONE_RANK, OWN_DATA, SKETCHES
from commtrace.analyze.values.in_parts import (
    IN_PARTS,
    distances_of_all_calls,
    distances_of_norms,
    distances_without_order,
    may_be_in_another_order,
    of_parted_holders,
)
from commtrace.analyze.values.noise import Noise
from commtrace.analyze.values.tolerance import (
    MOST_APART,
    Tolerance,
    closeness,
    coarsest_before,
    distances,
    roundoffs,
    scales,
    sizes,
)
from commtrace.schema import (
    BUFFER,
    GRADIENT,
    INPUT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    RESULT,
    STATE,
    UPDATED,
)

_OF_OPTIMIZER = frozenset({GRADIENT, PARAMETER, STATE, UPDATED})
_OF_MODULES = frozenset({OUTPUT, OUTPUT_GRADIENT, BUFFER})
_SUMMED = frozenset({OUTPUT, OUTPUT_GRADIENT, RESULT})
"""Roles of tensors that may be partial sums by design."""
_COPIES = tuple(
    [f"aten.{name}" for name in ("clone.default", "copy_.default", "cat.default", "slice.Tensor")]
)
"""Operators that put elements elsewhere, such as those at the edge of a rank's part."""
_OF_NORM = 1e-3
"""Relative change of the norm above which it is no change of single elements."""
_LOOKUP = "Embedding"
_NAMED = ["step", "phase", "role", "module", "module_call", "name", "op"]


def judged(
    ours: pd.DataFrame,
    theirs: pd.DataFrame,
    errors: np.ndarray,
    tables: Sequence[pd.DataFrame],
    is_right_elsewhere: pd.Series,
    is_ambiguous: np.ndarray,
    sizes_of_axes: Collection[float],
    of_parts: Callable[[np.ndarray], np.ndarray],
) -> pd.DataFrame:
    """Return each pair with its distance, its tolerance and the verdict.

    Args:
        ours: tensors of the run that is taken to be right.
        theirs: their counterparts.
        errors: distance of each of `ours` from a reference; nan if there is none.
        tables: all tensors of both runs.
        is_right_elsewhere: mask of tensors that another rank has right.
        is_ambiguous: mask of tensors that are among several alike, in an unknown order.
        sizes_of_axes: numbers of ranks of the second run's mesh axes and groups, of all its ranks
            for each of the first run's, and of calls of its modules in a step.
        of_parts: function of the mask of pairs whose sum over ranks is right. It returns the mask
            of pairs that a rank computed from parts alone.
    """
    apart, size = distances(ours, theirs), sizes(ours, theirs)
    unordered = distances_without_order(ours, theirs)
    in_parts = np.fmin(unordered, distances_of_all_calls(ours, theirs))
    apart = np.where(theirs["layout"] == IN_PARTS, in_parts, apart)
    is_certain = ~_has_unknown_layout(ours) & ~_has_unknown_layout(theirs)
    is_certain |= is_right_elsewhere.to_numpy() & _should_be_equal(theirs)
    is_scaled = _is_scaled_by_ranks(ours, theirs, sizes_of_axes)
    is_moved = may_be_in_another_order(theirs) & (unordered <= MOST_APART)
    # A loss of a rank's own part of the batch has gradients of another scale.
    is_partial_data = (theirs["layout"] == IN_PARTS) & theirs["role"].isin({INPUT, *_SUMMED})
    is_partial_data &= ~_are_looked_up(theirs)
    is_partial_data |= of_parted_holders(theirs)
    is_certain &= ~is_scaled & ~is_moved & ~is_partial_data.to_numpy()
    is_preparation = _is_preparation(ours)
    of_sums = _distance_of_sums(ours, theirs, tables, size)
    alone, apart = apart, np.fmin(apart, of_sums)
    apart[_is_of_other_data(ours, theirs, apart)] = np.nan
    close = closeness(ours["dtype"], theirs["dtype"])
    is_apart = apart > close
    is_of_parts = of_parts((of_sums <= close) & (alone > close))
    # One rank's part of a tensor is that of a single device, which another rank has.
    is_of_parts &= ~is_right_elsewhere.to_numpy() | theirs["op"].isin(_COPIES).to_numpy()
    # Inputs of micro-batches are of the step before.
    is_input = ((theirs["layout"] == IN_PARTS) & (theirs["role"] == INPUT)).to_numpy()
    apart[is_apart & (is_of_parts | is_input | _is_of_a_stage(theirs, tables[1]))] = np.nan
    replicas = np.divide(theirs["apart"], size, out=np.zeros(len(size)), where=size > 0)
    norms_apart = distances_of_norms(ours, theirs)
    tolerance, noise = Tolerance(), Noise(ours["name"][ours["role"] == STATE])
    allowed, explained, verdicts, may_grow = [], [], [], True
    more_bad = [
        (theirs[name] > ours[name].clip(lower=0)).to_numpy() for name in ("num_nan", "num_inf")
    ]
    is_bad = more_bad[0] | more_bad[1]
    # A tensor of numbers that cancel is measured against the others of its role.
    scaled = np.fmax(apart, np.where(np.isnan(apart), np.nan, replicas)) * scales(ours, theirs)
    values = [side[[*SKETCHES]].to_numpy("float64") for side in (ours, theirs)]
    named = zip(ours["phase"], ours["role"], ours["name"], ours["module"], strict=True)
    units = np.fmax(roundoffs(ours["dtype"], theirs["dtype"]), coarsest_before(ours, tables[0]))
    for place, (phase, role, name, module) in enumerate(named):
        error, distance = errors[place], scaled[place]
        usual = tolerance.of(units[place], None if np.isnan(error) else error, phase)
        if may_grow:
            noise.follow(role, name, values[0][place], values[1][place])
        limit = max(usual, noise.allowed(role, name, module, size[place]))
        is_known = not np.isnan(distance) and not is_preparation[place]
        is_wrong = is_known and bool(distance > limit or is_bad[place])
        if role == GRADIENT:
            noise.note_gradient(name, is_right=is_known and not is_wrong)
        elif role == UPDATED and is_wrong and may_grow and replicas[place] <= limit:
            has_other_norm = norms_apart[place] > max(apart[place] / 2, _OF_NORM)
            is_wrong = not noise.is_scattered(
                name, values[0][place], values[1][place], has_other_norm=has_other_norm
            )
        may_grow &= not (is_wrong and is_certain[place]) or is_ambiguous[place]
        if may_grow and is_known and is_certain[place]:
            if distance <= usual:
                tolerance.accept(distance, phase)
            noise.accept(role, name, module, apart[place], usual)
        allowed.append(limit)
        explained.append(usual)
        verdicts.append(is_wrong)
    furthest = np.where(np.isnan(apart), np.nan, np.fmax(apart, replicas))
    furthest[is_preparation & (scaled > np.array(allowed))] = np.nan
    found = ours[_NAMED].assign(
        distance=furthest, tolerance=allowed, is_wrong=verdicts, is_certain=is_certain,
        is_scaled=is_scaled, rounding=explained,
    )  # fmt: skip
    is_sum = (alone * scales(ours, theirs) > np.array(allowed)) & ~found["is_wrong"]
    found["is_sum"] = is_sum & ~np.isnan(of_sums) & ~np.isnan(furthest)
    return found.assign(is_wrong=found["is_wrong"] & ~_are_added_up(found, ours["norm"] > 0))


def _distance_of_sums(
    ours: pd.DataFrame, theirs: pd.DataFrame, tables: Sequence[pd.DataFrame], size: np.ndarray
) -> np.ndarray:
    """Return the distance of the sum over ranks of tensors of unknown layout; else nan.

    An operator, or a module, between the collectives of a program returns partial sums or partial
    means. If they add up to the right tensor, that is what they are, since four random sketches do
    not agree by chance. Both runs may have such parts, on different numbers of ranks.
    """
    sides = [side[[*SKETCHES]].to_numpy("float64") for side in (ours, theirs)]
    sums, numbers = zip(
        *(_sums(side, table) for side, table in zip((ours, theirs), tables, strict=True)),
        strict=True,
    )
    size = np.where(size > 0, size, 1.0)
    found = np.sqrt(((sums[0] - sums[1]) ** 2).mean(axis=1)) / size
    for side, number, right in zip(sums, numbers, sides[::-1], strict=True):
        # Groups may hold replicas of the sum, so a divisor of the number of ranks counts it once.
        for divisor in (each for each in range(1, number + 1) if number % each == 0):
            of_sum = np.sqrt(((side / divisor - right) ** 2).mean(axis=1))
            found = np.fmin(found, of_sum / size)
    return found


def _sums(side: pd.DataFrame, table: pd.DataFrame) -> tuple[np.ndarray, int]:
    """Return sums over ranks of tensors of unknown layout, and the largest number of addends."""
    key, names = [*KEY, "shape"], [*SKETCHES]
    is_asked, is_part = (
        _has_unknown_layout(each) & each["role"].isin(_SUMMED).to_numpy() for each in (side, table)
    )
    found = np.full((len(side), len(names)), np.nan)
    if not is_asked.any() or not is_part.any():
        return found, 0
    grouped = table[is_part].groupby(key, sort=False, observed=True)[names]
    asked = pd.MultiIndex.from_frame(side[is_asked][key])
    found[is_asked] = grouped.sum().reindex(asked).to_numpy("float64")
    return found, int(grouped.size().max())


def _is_scaled_by_ranks(
    ours: pd.DataFrame, theirs: pd.DataFrame, sizes_of_axes: Collection[float]
) -> np.ndarray:
    """Return which tensors are multiplied or divided by the size of an axis, alike on all ranks.

    A tensor that a single rank has counts, too. Those alike need not be replicas: a program may
    divide a loss by the number of ranks, whose gradients it then adds up, or divide gradients by
    the number of micro-batches when it has added these up.
    """
    x, y = (side[[*SKETCHES]].to_numpy("float64") for side in (ours, theirs))
    close = np.fmin(4 * closeness(ours["dtype"], theirs["dtype"]), MOST_APART)
    size = np.sqrt((y**2).mean(axis=1))
    found = np.zeros(len(ours), dtype=bool)
    for number in {*sizes_of_axes} - {1}:
        for factor in (number, 1 / number):
            found |= np.sqrt(((factor * x - y) ** 2).mean(axis=1)) <= close * size
    is_alike = theirs["layout"] == ALL_EQUAL
    is_alike |= (theirs["layout"] == ON_ONE_RANK) & (theirs["rank"] >= 0)
    is_alike &= ~theirs["role"].isin(_OF_OPTIMIZER)
    return found & (size > 0) & is_alike.to_numpy()


def _are_added_up(judged: pd.DataFrame, is_not_zero: pd.Series) -> np.ndarray:
    """Return which tensors are scaled by design, as a gradient that follows in the step is right.

    A wrongly scaled loss would scale all gradients, and a wrongly scaled module its own.
    """
    found = judged["is_scaled"].to_numpy().copy()
    gradients = judged[(judged["role"] == GRADIENT) & judged["is_certain"] & is_not_zero]
    is_right = ~gradients["is_wrong"] & gradients["distance"].notna()
    last = gradients.index.to_series()[is_right].groupby(gradients["step"][is_right]).max()
    wrong = gradients[gradients["is_wrong"]].groupby("step")["name"].agg(tuple)
    for place in np.flatnonzero(found).tolist():
        step, module = judged["step"].iloc[place], judged["module"].iloc[place]
        of_module = any(name.startswith(f"{module}.") for name in wrong.get(step, ()) if module)
        found[place] = judged.index[place] < last.get(step, -1) and not of_module
    return found


def _should_be_equal(theirs: pd.DataFrame) -> np.ndarray:
    """Return which tensors all ranks should have alike if any rank matches a single device.

    Tensors of modules depend on the inputs, which may be each rank's own, and results of operators
    on what a rank does alone, such as a reduction to it.
    """
    is_own_input = (theirs["role"] == INPUT).to_numpy() & _has_unknown_layout(theirs)
    steps = theirs["step"]
    has_own_inputs = steps.isin(steps[is_own_input])
    of_modules = theirs["role"].isin(_OF_MODULES) & ~has_own_inputs
    return (theirs["role"].isin(_OF_OPTIMIZER) | of_modules).to_numpy()


def _are_looked_up(theirs: pd.DataFrame) -> pd.Series:
    """Return which tensors are rows of a table that all ranks have, and of nothing else."""
    is_whole = (theirs["role"] == PARAMETER) & ~theirs["layout"].isin(("", IN_PARTS))
    tables = theirs["name"][is_whole].str.removesuffix(".weight")
    return (
        (theirs["role"] == OUTPUT)
        & (theirs["module_class"] == _LOOKUP)
        & theirs["module"].isin(tables)
    )


def _is_preparation(pairs: pd.DataFrame) -> np.ndarray:
    """Return which pairs are results of operators before the first step of a program with steps.

    Those that matter, such as initial weights among numbers that are drawn for others, too, are in
    the parameters, buffers and inputs of the first step.
    """
    is_before = (pairs["step"] < 0) & (pairs["role"] == RESULT)
    return (is_before & bool((pairs["step"] >= 0).any())).to_numpy()


def _is_of_a_stage(theirs: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Return which tensors are inputs and outputs of stages, which differ in a whole model."""
    is_lone = (table["role"] == PARAMETER) & (table["layout"] == ON_ONE_RANK) & (table["rank"] >= 0)
    is_outer = (theirs["module"] == "") & theirs["role"].isin((INPUT, OUTPUT, OUTPUT_GRADIENT))
    return (is_outer & bool(is_lone.any())).to_numpy()


def _has_unknown_layout(side: pd.DataFrame) -> np.ndarray:
    return (side["layout"] == "").to_numpy()


def _is_of_other_data(ours: pd.DataFrame, theirs: pd.DataFrame, apart: np.ndarray) -> np.ndarray:
    """Return which tensors are of a rank's own part of the data, which the other run may not have.

    Both runs have it if they share a layout, and the first tensors of a rank in a step are equal.
    """
    is_own = [
        _has_unknown_layout(side) & side["mesh"].str.startswith(OWN_DATA).to_numpy()
        for side in (ours, theirs)
    ]
    is_any, is_same = is_own[0] | is_own[1], is_own[0] & is_own[1]
    is_same &= ((ours["mesh"] == theirs["mesh"]) & (ours["rank"] == theirs["rank"])).to_numpy()
    close = closeness(ours["dtype"], theirs["dtype"])
    first = pd.DataFrame({"step": ours["step"], "rank": theirs["rank"], "is_equal": apart <= close})
    equal = first[is_same].groupby(["step", "rank"])["is_equal"].first()
    of_rank = pd.MultiIndex.from_frame(first[["step", "rank"]])
    return is_any & ~(is_same & of_rank.isin(equal.index[equal]))
