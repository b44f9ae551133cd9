"""Tables beside the calls that are empty: pipelines, kernels, tensors, experts, findings."""

from __future__ import annotations

from commtrace.analyze.experts.exchanges import ALL_TO_ALL
from commtrace.analyze.experts.expert_load import expert_load
from commtrace.analyze.findings import muted, unanswered
from commtrace.analyze.findings.needs import SPLITS
from commtrace.analyze.measures.census import census
from commtrace.analyze.notices.of_recording import ranks_named
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values import replicas
from commtrace.schema import MAX_ACTIONS


def no_pipelines(frames: Frames) -> str:
    """State that actions of pipeline stages are missing."""
    numbers = frames.pipeline_actions["rank"].value_counts()
    full = sorted(numbers[numbers >= MAX_ACTIONS].index)
    if full:
        return (
            f"{ranks_named(full)}: the first {MAX_ACTIONS:,} actions of pipeline stages were kept, "
            "and later rounds are left out."
        )
    if len(numbers):
        return ""
    return (
        "No action of a pipeline stage was recorded: no schedule of torch.distributed.pipelining "
        "ran, and commtrace.pipeline_action marked none."
    )


def no_kernels(frames: Frames) -> str:
    """State that there are no kernels."""
    if census(frames).num_kernels:
        return ""
    return (
        "There are no kernels of a device in this trace: only imported traces of torch.profiler "
        "have them."
    )


def unlaunched(frames: Frames) -> str:
    """Return the number of kernels of unknown launch."""
    counts = census(frames)
    if not counts.num_unlaunched:
        return ""
    return (
        f"The launch of {counts.num_unlaunched:,} of {counts.num_kernels:,} kernels is unknown, so "
        "the reason of the idle time before them is, too: a replay infers what they waited for."
    )


def no_fingerprints(frames: Frames) -> str:
    """State that there are no values of tensors."""
    if census(frames).num_fingerprints:
        return ""
    return (
        "There are no values of tensors in this trace: `commtrace run --values` and "
        'commtrace.record(values="op") keep fingerprints of them.'
    )


def equal_replicas(frames: Frames) -> str:
    """State that all replicas are equal."""
    if not census(frames).num_fingerprints or len(replicas(frames)):
        return ""
    return "All replicas of tensors that were observed are equal on all ranks."


def no_splits(frames: Frames) -> str:
    """State that all-to-alls have no splits."""
    if not frames.num_calls:
        return ""
    if not census(frames).kinds[ALL_TO_ALL]:
        return "There are no all-to-alls."
    return SPLITS.lacks(frames)


def no_experts(frames: Frames) -> str:
    """State that the load of experts is unknown."""
    if no_splits(frames):
        return ""
    load = expert_load(frames)
    if load.empty:
        return (
            "No all-to-all with splits carries rows to experts: they convert layouts, or the "
            "members of their groups are unknown."
        )
    if (load["expert"] >= 0).any():
        return ""
    return (
        "The program does not state the rows of its experts (commtrace.experts), so that the load "
        "is summed over all experts of a rank."
    )


def muted_findings(frames: Frames) -> str:
    """Return the number of findings that the settings mute."""
    counts = muted(frames)
    if not counts:
        return ""
    each = "; ".join(f"{num} of {rule}: {reason}" for (rule, reason), num in counts.items())
    return f"Findings muted by {frames.settings.path} are omitted ({each})."


def unanswered_rules(frames: Frames) -> str:
    """Name rules that lack what they need."""
    lacking = unanswered(frames)
    return " ".join(f"Rule {name}: {text}" for name, text in lacking.items())
