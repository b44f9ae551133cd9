"""Limits of a recording: ranks, steps and calls that it lacks, and its clocks."""

from __future__ import annotations

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import is_fake_world, why_incomplete
from commtrace.tracefile import EVERY, RECORDING, REPLAYED, STEPS_FROM, WRITE_ERRORS
from commtrace.units import counted, ordinal, text_of_ranks


def replayed_note(frames: Frames) -> str:
    """Return a sentence that says with which changes a run was replayed; empty if recorded."""
    if REPLAYED not in frames.run:
        return ""
    changes = str(frames.run[REPLAYED])
    return f"Replayed, not recorded: {f'with {changes}' if changes else 'without a change'}."


def no_calls(frames: Frames) -> str:
    """Return why there is no call."""
    if frames.num_calls:
        return ""
    if len(frames.communicators):
        return (
            "There are no calls, but how many each member of a communicator has launched: "
            "`commtrace check` compares them."
        )
    if reasons := why_incomplete(frames):
        return (
            "No communication was recorded, though the program may have communicated: "
            f"{'; '.join(reasons)}."
        )
    return (
        "No communication was recorded: the program issued no collective and no point-to-point "
        "call while recording was on."
    )


def imported(frames: Frames) -> str:
    """Name what an import lacks."""
    lacks = frames.run.get("lacks") or []
    if not lacks:
        return ""
    source = frames.run.get("imported_from") or "another tool"
    return f"Imported from {source}, which lacks: {'; '.join(lacks)}."


def joined(frames: Frames) -> str:
    """Describe how times on devices were joined."""
    notes = frames.run.get("joined")
    if not notes or not isinstance(notes, list):
        return ""
    return f"Times on devices: {'; '.join(map(str, notes))}."


def one_rank(frames: Frames) -> str:
    """Describe what a single rank cannot show."""
    if frames.num_ranks != 1:
        return ""
    world_size = frames.run.get("world_size", 1)
    if world_size == 1:
        return (
            "The run had one rank, so nothing was sent to another: wire bytes are 0, and "
            "there is no peer to wait for."
        )
    if is_fake_world(frames):
        return (
            f"One process was the only rank of a fake world of {world_size}: nothing was sent, and "
            "times of communication are unknown."
        )
    return (
        f"Only one of {world_size} ranks is in this trace: numbers are of that rank alone, and its "
        "waits for other ranks are unknown."
    )


def missing_ranks(frames: Frames) -> str:
    """Name ranks without a recording."""
    missing = frames.run.get("missing_ranks") or []
    if not missing:
        return ""
    if not frames.num_ranks:
        return f"None of the {len(missing)} ranks left a recording."
    return (
        f"{ranks_named(missing)} left no recording: means are over the "
        f"{counted(frames.num_ranks, 'recorded rank')}, and waits are unknown for collectives with "
        "a missing member."
    )


def left_out(frames: Frames) -> str:
    """Name spools of an earlier run."""
    names = frames.run.get("left_out_spools") or []
    if not names:
        return ""
    return (
        f"{', '.join(map(str, names))} left by an earlier run beside the run's spools: not "
        "included in this trace."
    )


def truncated(frames: Frames) -> str:
    """Name ranks that did not close the recording."""
    running = set(frames.run.get("running_ranks") or ())
    short = sorted(set(frames.ranks.loc[~frames.ranks["complete"], "rank"]) - running)
    if not short or "imported_from" in frames.run:  # an import covers a part of its run
        return ""
    return (
        f"{ranks_named(short)} did not close the recording (killed, crashed, or still running): "
        "the last calls may be missing."
    )


def running(frames: Frames) -> str:
    """Name ranks that were still running."""
    ranks = frames.run.get("running_ranks") or []
    if not ranks:
        return ""
    verb, had = ("was", "it had") if len(ranks) == 1 else ("were", "they had")
    return f"{ranks_named(ranks)} {verb} still running: this is what {had} written so far."


def dropped(frames: Frames) -> str:
    """Return the number of calls that were dropped."""
    dropped = int(frames.ranks["num_dropped"].clip(lower=0).sum())
    if not dropped:
        return ""
    why = (
        f"could not be written ({'; '.join(frames.run[WRITE_ERRORS])})"
        if WRITE_ERRORS in frames.run
        else "were dropped to stay within the limits of the recording"
    )
    return f"{counted(dropped, 'call')} {why}: counts, bytes and times are too low by that amount."


def sampled(frames: Frames) -> str:
    """State that only some steps were recorded."""
    every = frames.run.get(EVERY)
    if every is None:
        return ""
    steps = frames.steps["step"]
    recorded = f"{counted(steps.nunique(), 'recorded step')}" if len(steps) else "recorded part"
    return (
        f"Only every {ordinal(every)} step was recorded: counts, bytes and times cover the "
        f"{recorded} and what precedes the first step, not the whole run."
    )


def no_steps(frames: Frames) -> str:
    """State that there are no steps."""
    if len(frames.steps) or not frames.num_calls:
        return ""
    if "imported_from" in frames.run:
        return "No steps were marked, so there are no numbers per step."
    return (
        "No steps were marked or detected (no torch optimizer stepped), so there are no numbers "
        "per step. Call step() on the recording at the end of each step to mark them."
    )


def found_steps(frames: Frames) -> str:
    """Return the source of steps that were not marked."""
    by = _STEP_ENDS.get(str(frames.run.get(STEPS_FROM, "")))
    return f"No steps were marked: {by}." if by else ""


_STEP_ENDS = {
    "optimizer": "a step ends when the optimizer's step() returns",
    "profiler": "a step ends when step() of torch.profiler is called",
    "scheduler": "a step ends when step() of the LR scheduler returns",
    RECORDING: "the recording counts as a single step",
}


def several_clocks(frames: Frames) -> str:
    """State that hosts have separate clocks."""
    clock = frames.run.get("clock", "one clock")
    if clock == "one clock":
        return ""
    return (
        f"The ranks ran on hosts with separate clocks ({clock}): the accuracy of waits between "
        "hosts, "
        "and of the timeline's alignment, is limited by their agreement."
    )


def host_clocks(frames: Frames) -> str:
    """State that only the host was timed."""
    devices = sorted(set(frames.ranks["device"].astype(object)) - {"", "cpu"})
    if not devices or "imported_from" in frames.run:  # imports have device times
        return ""
    return (
        f"The ranks computed on {', '.join(devices)}: exposed time is the time for which the "
        "host was blocked, since the trace lacks the times of the device's kernels."
    )


def ranks_named(ranks: list[int]) -> str:
    """Return ranks in words, as the begin of a sentence."""
    text = text_of_ranks(ranks)
    return text[0].upper() + text[1:]
