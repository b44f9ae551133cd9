"""Data that rules need, and sentences on those that a trace lacks.

A rule lists its needs; it is evaluated only on a trace that has all of them. Otherwise, the first
sentence of them is reported in its place, so that an empty result is not mistaken for a clean run.
A trace without calls lacks nothing: there is nothing to find in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commtrace.analyze.experts.exchanges import ALL_TO_ALL
from commtrace.analyze.measures.census import WAIT, census
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.measures.selections import (
    DEPENDENT,
    EXPLAINED_FLAGS,
    FLAGS,
    FOLLOWED,
    GATHERS_OF_PARAMETERS,
    GATHERS_OF_TENSORS,
    NAMED_GRADIENTS,
    REDUCTIONS,
    TYPED,
    USED_BY_OPERATORS,
    VALUES,
    VALUES_OF_OPERATORS,
    WITH_SPLITS,
    WRITTEN_BROADCASTS,
)
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.waits.stragglers import longest_delay_ns
from commtrace.schema import GRADIENT, LOCAL_GRADIENT
from commtrace.tracefile import RECORDING, STEPS_FROM
from commtrace.units import text_of_duration

HALF = ("bfloat16", "float16")
PASSES = ("forward", "backward", "recompute")


@dataclass(frozen=True, slots=True)
class Need:
    """Data that a rule needs.

    Attributes:
        about: The data, in a few words.
        lacks: Returns a sentence if a trace with calls lacks it; else "".
    """

    about: str
    lacks: Callable[[Frames], str]


_AT_OPERATORS = 'recorded with detail="op", on the CPU'


def _source(frames: Frames) -> str:
    """Return what the trace was imported from; empty if it was recorded."""
    return str(frames.run.get("imported_from") or "")


def _not_stated(frames: Frames, what: str, recorded: str) -> str:
    """Return that a trace does not state something, and when a recording does.

    Args:
        frames: The run.
        what: What it does not state, a clause.
        recorded: Which recordings state it.
    """
    source = _source(frames)
    why = f", since it was imported from {source}" if source else f" ({recorded})"
    return f"The trace does not state {what}{why}."


def _lacks_steps(frames: Frames) -> str:
    if len(frames.steps) or census(frames).known["step"]:
        return ""
    if _source(frames):
        return "The trace has no steps."
    return (
        "No steps were marked or detected: no torch optimizer, profiler or LR scheduler stepped "
        "while recording. Call step() on the recording at the end of each step."
    )


def _lacks_several_steps(frames: Frames) -> str:
    if frames.run.get(STEPS_FROM) == RECORDING:
        return (
            "The recording counts as a single step, since none was marked and no torch optimizer "
            "stepped: repeated calls may belong to different steps of the program."
        )
    return _lacks_steps(frames)


def _lacks_duration(frames: Frames) -> str:
    return "" if counted_ns(frames) else "The duration of the run is unknown."


def _lacks_layouts(frames: Frames) -> str:
    if census(frames).known["source_spec"]:
        return ""
    return (
        "No call has source and target layouts: only redistributions of dtensor_core and of "
        "torch's DTensor announce them."
    )


def _lacks_uses(frames: Frames) -> str:
    if not census(frames).kinds["all_reduce"] or census(frames).selected[FOLLOWED]:
        return ""
    return _not_stated(frames, "which part of a result operators used", _AT_OPERATORS)


def _lacks_layouts_and_uses(frames: Frames) -> str:
    return "" if census(frames).selected[FOLLOWED] else _lacks_layouts(frames)


def _lacks_modules(frames: Frames) -> str:
    if census(frames).in_module:
        return ""
    return "No call was made in a module, or modules were not tracked while recording."


def _lacks_modules_of_passes(frames: Frames) -> str:
    """Return a sentence if the source attributes no call of some pass to modules.

    A recording attributes the calls of every pass; the stacks of a profile have the modules of the
    forward pass only.
    """
    if lack := _lacks_modules(frames):
        return lack
    source, counts = _source(frames), census(frames)
    without = [name for name in PASSES if counts.phases[name] and not counts.in_module[name]]
    if not source or not without:
        return ""
    return (
        f"No call of the {' and '.join(without)} pass is in a module: {source} does not state "
        "to which modules they belong."
    )


def _lacks_sizes(frames: Frames) -> str:
    if census(frames).known["payload_bytes"]:
        return ""
    return "The message size is unknown for all calls."


def _lacks_groups(frames: Frames) -> str:
    return "" if census(frames).known["group"] else "The process group of no call is known."


def _lacks_half(frames: Frames) -> str:
    if census(frames).dtypes.keys() & HALF or census(frames).selected[TYPED]:
        return ""
    lack = _not_stated(frames, "whether data was cast for its call", _AT_OPERATORS)
    return f"No call carries a 16-bit type. {lack}"


def _lacks_contents(frames: Frames) -> str:
    if not _source(frames) or census(frames).known["carries"]:
        return ""
    return _not_stated(frames, "what calls carry", "")


def _lacks_logs(frames: Frames) -> str:
    """Return a sentence if DistributedDataParallel has not logged whether parameters are unused."""
    counts = census(frames).selected
    if not counts[FLAGS] or counts[EXPLAINED_FLAGS]:
        return ""
    return (
        "The flags do not state whether parameters were unused: DistributedDataParallel had not "
        "logged it."
    )


def _lacks_identity(frames: Frames) -> str:
    """Return a sentence if no gather identifies its input, by tensor or parameters; else ""."""
    counts = census(frames)
    by_steps = counts.selected[GATHERS_OF_PARAMETERS] and not counts.selected[GATHERS_OF_TENSORS]
    return _lacks_units(frames) or (_lacks_steps(frames) if by_steps else "")


def _lacks_units(frames: Frames) -> str:
    """Return the same sentence, if what is gathered need not be known by step."""
    counts = census(frames)
    is_known = counts.selected[GATHERS_OF_TENSORS] or counts.selected[GATHERS_OF_PARAMETERS]
    if not counts.kinds["all_gather"] or is_known:
        return ""
    return (
        'No all-gather identifies its tensors (recorded with detail="op") or its parameters '
        "(recorded for FSDP), so repeated all-gathers are found by layouts only (rule ping_pong)."
    )


def _lacks_gradients(frames: Frames) -> str:
    if not census(frames).kinds.keys() & REDUCTIONS:
        return ""
    if census(frames).selected[NAMED_GRADIENTS]:
        return _lacks_several_steps(frames)
    return (
        "No reduction names the parameters of its gradients (DistributedDataParallel's and FSDP's "
        "do), so repeated reductions cannot be identified."
    )


def _lacks_own_gradients(frames: Frames) -> str:
    if not census(frames).num_fingerprints:
        return ""
    roles = set().union(*frames.by_ranks(_roles))
    if GRADIENT not in roles or LOCAL_GRADIENT in roles:
        return ""
    return (
        "No gradient of a rank's own backward pass was observed, so it is unknown which ranks' "
        "gradients were summed. Compiled backward passes call no hooks."
    )


def _roles(part: Frames) -> set[str]:
    return set(part.fingerprints["role"].unique())


def _lacks_dependencies(frames: Frames) -> str:
    if not census(frames).known["blocked_ns"]:
        return "The blocked time of no call is known, so overlap that was lost is unknown."
    if census(frames).selected[DEPENDENT]:
        return ""
    return _not_stated(frames, "when data was ready or used", _AT_OPERATORS)


def _lacks_writes(frames: Frames) -> str:
    if not census(frames).kinds["broadcast"] or census(frames).selected[WRITTEN_BROADCASTS]:
        return ""
    return _not_stated(frames, "when tensors of broadcasts were written to", _AT_OPERATORS)


def _lacks_uses_of_reduced(frames: Frames) -> str:
    kinds = census(frames).kinds
    if not (kinds["reduce"] and kinds["broadcast"]) or census(frames).selected[FOLLOWED]:
        return ""
    return _not_stated(frames, "when results of reductions were used", _AT_OPERATORS)


def _lacks_users(frames: Frames) -> str:
    if census(frames).selected[USED_BY_OPERATORS]:
        return ""
    return _not_stated(frames, "which operators used the results of calls", _AT_OPERATORS)


def _lacks_origins(frames: Frames) -> str:
    counts = census(frames).selected
    if not counts[VALUES] or counts[VALUES_OF_OPERATORS]:
        return ""
    return _not_stated(frames, "of what ranks compute the values that they collect", _AT_OPERATORS)


def _lacks_cores(frames: Frames) -> str:
    if census(frames).known["run_delay_ns"]:
        return ""
    return _not_stated(frames, "for how long ranks had no core", "recorded on Linux")


def _lacks_waits(frames: Frames) -> str:
    if census(frames).known[WAIT]:
        return ""
    if not census(frames).known["blocked_ns"]:
        return "The blocked time of no call is known, so stragglers are unknown."
    return "No collective could be matched across its ranks, so stragglers are unknown."


def clock_error_ns(frames: Frames) -> int:
    """Return the largest error by which times of two ranks can be misaligned; -1 without bound."""
    of_hosts = frames.ranks.groupby("host", observed=True)["clock_error_ns"].agg(["min", "max"])
    if frames.run.get("clock", "one clock") == "one clock" or len(of_hosts) < 2:
        return 0
    if (of_hosts["min"] < 0).any():
        return -1
    return int(of_hosts["max"].nlargest(2).sum())


def _lacks_alignment(frames: Frames) -> str:
    error = clock_error_ns(frames)
    if error < 0:
        return "The clocks of the hosts could not be aligned, so delays between them are unknown."
    if not error or not 0 <= longest_delay_ns(frames) <= error:
        return ""
    return (
        f"All delays are within the error of the alignment of clocks, {text_of_duration(error)}, "
        "so stragglers are unknown."
    )


def _lacks_splits(frames: Frames) -> str:
    if not census(frames).kinds[ALL_TO_ALL] or census(frames).selected[WITH_SPLITS]:
        return ""
    return "No all-to-all states different amounts for the ranks: they are equal, or unknown."


STEPS = Need("steps", _lacks_steps)
DURATION = Need("the duration of the steps or of the run", _lacks_duration)
LAYOUTS = Need("source and target layouts of calls", _lacks_layouts)
USES = Need("which part of a result was used", _lacks_uses)
LAYOUTS_OR_USES = Need(
    "source and target layouts of calls, or which part of a result was used",
    _lacks_layouts_and_uses,
)
MODULES = Need("modules of calls", _lacks_modules)
MODULES_OF_PASSES = Need("modules of calls in each pass", _lacks_modules_of_passes)
SIZES = Need("message sizes", _lacks_sizes)
SPLITS = Need("splits of all-to-alls", _lacks_splits)
PROCESS_GROUPS = Need("process groups of calls", _lacks_groups)
HALF_TYPES = Need("messages of a 16-bit type, or casts of data", _lacks_half)
CONTENTS = Need("what calls carry", _lacks_contents)
LOGS = Need("what DistributedDataParallel logs of unused parameters", _lacks_logs)
IDENTITY = Need("the tensors or, by step, the parameters of all-gathers", _lacks_identity)
UNITS = Need("the tensors or the parameters of all-gathers", _lacks_units)
GRADIENTS = Need("the parameters of reduced gradients, by step", _lacks_gradients)
OWN_GRADIENTS = Need("gradients of the ranks' own backward passes", _lacks_own_gradients)
DEPENDENCIES = Need("when data was ready and used", _lacks_dependencies)
USES_OF_REDUCED = Need("when results of reductions were used", _lacks_uses_of_reduced)
USERS = Need("operators that used results", _lacks_users)
ORIGINS = Need("operators that computed what was collected", _lacks_origins)
WRITES = Need("when tensors of broadcasts were written to", _lacks_writes)
CORES = Need("the time for which ranks had no core", _lacks_cores)
WAITS = Need("times of calls of all members of their groups", _lacks_waits)
ALIGNMENT = Need("clocks that are aligned more exactly than delays last", _lacks_alignment)
