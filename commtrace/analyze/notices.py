"""Notices: sentences that explain why a table or picture is empty or partial.

`notices_of` takes a run and returns notices, each naming the analyses and pictures it limits.
`RULES` lists the rules, and `MINOR_RULES` those shown only beside the table or picture they
limit. A rule is a function that returns a sentence, or an empty text if nothing is lacking.

The file exceeds the usual length, to keep the table beside its rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commtrace.analyze.experts.exchanges import ALL_TO_ALL
from commtrace.analyze.experts.expert_load import expert_load
from commtrace.analyze.findings import muted, unanswered
from commtrace.analyze.findings.needs import DEPENDENCIES, SPLITS
from commtrace.analyze.measures.census import WAIT, census
from commtrace.analyze.replay.words import why_not_replayed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import is_fake_world, why_incomplete
from commtrace.analyze.run.matching import TRANSFERS
from commtrace.analyze.traffic.matrix import matrix
from commtrace.analyze.values import replicas
from commtrace.schema import COMM, MAX_ACTIONS
from commtrace.tracefile import EVERY, RECORDING, REPLAYED, STEPS_FROM, WRITE_ERRORS
from commtrace.units import counted, known_note, ordinal, text_of_ranks

EVERYTHING = "everything"

_TYPES = {column.name: column.type for column in COMM}

NoticeCheck = Callable[[Frames], str]


@dataclass(frozen=True, slots=True)
class Notice:
    """A limitation of a trace.

    Attributes:
        limits: Names of the analyses and pictures that it limits, or EVERYTHING.
        text: The limitation in a sentence.
    """

    limits: tuple[str, ...]
    text: str
    is_minor: bool = False
    """Relevant only to readers of the tables and pictures that it limits."""


def replayed_note(frames: Frames) -> str:
    """Return a sentence that says with which changes a run was replayed; empty if recorded."""
    if REPLAYED not in frames.run:
        return ""
    changes = str(frames.run[REPLAYED])
    return f"Replayed, not recorded: {f'with {changes}' if changes else 'without a change'}."


def _no_calls(frames: Frames) -> str:
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


def _imported(frames: Frames) -> str:
    lacks = frames.run.get("lacks") or []
    if not lacks:
        return ""
    source = frames.run.get("imported_from") or "another tool"
    return f"Imported from {source}, which lacks: {'; '.join(lacks)}."


def _joined(frames: Frames) -> str:
    notes = frames.run.get("joined")
    if not notes or not isinstance(notes, list):
        return ""
    return f"Times on devices: {'; '.join(map(str, notes))}."


def _one_rank(frames: Frames) -> str:
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


def _missing_ranks(frames: Frames) -> str:
    missing = frames.run.get("missing_ranks") or []
    if not missing:
        return ""
    if not frames.num_ranks:
        return f"None of the {len(missing)} ranks left a recording."
    return (
        f"{_ranks(missing)} left no recording: means are over the "
        f"{counted(frames.num_ranks, 'recorded rank')}, and waits are unknown for collectives with "
        "a missing member."
    )


def _left_out(frames: Frames) -> str:
    names = frames.run.get("left_out_spools") or []
    if not names:
        return ""
    return (
        f"{', '.join(map(str, names))} left by an earlier run beside the run's spools: not "
        "included in this trace."
    )


def _truncated(frames: Frames) -> str:
    running = set(frames.run.get("running_ranks") or ())
    short = sorted(set(frames.ranks.loc[~frames.ranks["complete"], "rank"]) - running)
    if not short or "imported_from" in frames.run:  # an import covers a part of its run
        return ""
    return (
        f"{_ranks(short)} did not close the recording (killed, crashed, or still running): the "
        "last calls may be missing."
    )


def _running(frames: Frames) -> str:
    ranks = frames.run.get("running_ranks") or []
    if not ranks:
        return ""
    verb, had = ("was", "it had") if len(ranks) == 1 else ("were", "they had")
    return f"{_ranks(ranks)} {verb} still running: this is what {had} written so far."


def _sampled(frames: Frames) -> str:
    every = frames.run.get(EVERY)
    if every is None:
        return ""
    steps = frames.steps["step"]
    recorded = f"{counted(steps.nunique(), 'recorded step')}" if len(steps) else "recorded part"
    return (
        f"Only every {ordinal(every)} step was recorded: counts, bytes and times cover the "
        f"{recorded} and what precedes the first step, not the whole run."
    )


def _dropped(frames: Frames) -> str:
    dropped = int(frames.ranks["num_dropped"].clip(lower=0).sum())
    if not dropped:
        return ""
    why = (
        f"could not be written ({'; '.join(frames.run[WRITE_ERRORS])})"
        if WRITE_ERRORS in frames.run
        else "were dropped to stay within the limits of the recording"
    )
    return f"{counted(dropped, 'call')} {why}: counts, bytes and times are too low by that amount."


def _unless_imported(frames: Frames, advice: str) -> str:
    """Return the advice, unless the trace was imported from another tool."""
    return "" if "imported_from" in frames.run else advice


def _no_steps(frames: Frames) -> str:
    if len(frames.steps) or not frames.num_calls:
        return ""
    if "imported_from" in frames.run:
        return "No steps were marked, so there are no numbers per step."
    return (
        "No steps were marked or detected (no torch optimizer stepped), so there are no numbers "
        "per step. Call step() on the recording at the end of each step to mark them."
    )


def _found_steps(frames: Frames) -> str:
    by = _STEP_ENDS.get(str(frames.run.get(STEPS_FROM, "")))
    return f"No steps were marked: {by}." if by else ""


def _no_modules(frames: Frames) -> str:
    if not frames.num_calls or census(frames).in_module:
        return ""
    return "No call was made in a module, or modules were not tracked while recording."


def _no_operators(frames: Frames) -> str:
    if not frames.num_calls or census(frames).num_ops or census(frames).known["op"]:
        return ""
    return (
        "Operators were not recorded, so calls are not attributed to them, and the timeline has no "
        "phases."
    ) + _unless_imported(frames, ' Record with detail="op" to include them.')


def _no_waits(frames: Frames) -> str:
    if frames.num_ranks < 2 or not frames.num_calls or census(frames).known[WAIT]:
        return ""
    return (
        "No collective could be matched across its ranks, so waiting for late ranks cannot be "
        "separated from transfer."
    )


def _no_pipelines(frames: Frames) -> str:
    numbers = frames.pipeline_actions["rank"].value_counts()
    full = sorted(numbers[numbers >= MAX_ACTIONS].index)
    if full:
        return (
            f"{_ranks(full)}: the first {MAX_ACTIONS:,} actions of pipeline stages were kept, and "
            "later rounds are left out."
        )
    if len(numbers):
        return ""
    return (
        "No action of a pipeline stage was recorded: no schedule of torch.distributed.pipelining "
        "ran, and commtrace.pipeline_action marked none."
    )


def _several_clocks(frames: Frames) -> str:
    clock = frames.run.get("clock", "one clock")
    if clock == "one clock":
        return ""
    return (
        f"The ranks ran on hosts with separate clocks ({clock}): the accuracy of waits between "
        "hosts, "
        "and of the timeline's alignment, is limited by their agreement."
    )


def _host_clocks(frames: Frames) -> str:
    devices = sorted(set(frames.ranks["device"].astype(object)) - {"", "cpu"})
    if not devices or "imported_from" in frames.run:  # imports have device times
        return ""
    return (
        f"The ranks computed on {', '.join(devices)}: exposed time is the time for which the "
        "host was blocked, since the trace lacks the times of the device's kernels."
    )


def _untimed(frames: Frames) -> str:
    counts = census(frames)
    num_untimed, num_ended = counts.num_calls - counts.known["blocked_ns"], counts.num_ended
    if not num_untimed:
        return ""
    reasons = [
        f"{num:,} without {reason}"
        for num, reason in (
            (num_untimed - num_ended, "a known end"),
            (num_ended, "a recorded wait"),
        )
        if num
    ]
    note, kinds = _note_of_calls(frames, "blocked_ns")
    if num_untimed == counts.num_calls:
        return (
            f"The blocked time is {note} ({kinds}): {', '.join(reasons)}. It is unknown how much "
            "communication is exposed."
        )
    return (
        f"The blocked time is {note}, and sums of blocked time lack the others ({kinds}): "
        f"{', '.join(reasons)}."
    )


def _unsized(frames: Frames) -> str:
    counts = census(frames)
    if counts.known["wire_bytes"] == counts.num_calls:
        return ""
    note, kinds = _note_of_calls(frames, "wire_bytes")
    if not counts.known["wire_bytes"]:
        return f"The number of bytes sent is {note} ({kinds})."
    return f"The number of bytes sent is {note}, and sums lack the others ({kinds})."


def _unmatched(frames: Frames) -> str:
    counts = census(frames)
    if counts.known[WAIT] in (0, counts.num_calls):
        return ""  # without any, `_no_waits` says so
    note, kinds = _note_of_calls(frames, WAIT)
    return (
        f"The wait for a peer is {note}. The others ({kinds}) were not timed, or the calls of "
        "their peers are not in the trace, or differ."
    )


def _note_of_calls(frames: Frames, column: str) -> tuple[str, str]:
    """Return the number of calls with a known value, and the kinds of calls without."""
    counts = census(frames)
    kinds = sorted(kind or "kind not known" for kind in counts.unknown_kinds(column))
    return known_note(counts.known[column], counts.num_calls), ", ".join(kinds)


def _lacking(column: str, noun: str) -> NoticeCheck:
    """Return a rule that fires if calls lack a value in a column of table `comm`.

    A column of text is empty for calls to which it does not apply, and counts only if it always is.
    """
    is_text = _TYPES[column] is str

    def rule(frames: Frames) -> str:
        num_known, num_calls = census(frames).known[column], frames.num_calls
        if num_known == num_calls or (is_text and num_known):
            return ""
        if not num_known:
            return f"{noun} is unknown for all calls."
        return f"{noun} is {known_note(num_known, num_calls)}."

    return rule


def _none_of(column: str, text: str) -> NoticeCheck:
    """Return a rule that fires if no call has a value in a column of text of table `comm`."""
    return lambda frames: text if frames.num_calls and not census(frames).known[column] else ""


def _no_kernels(frames: Frames) -> str:
    if census(frames).num_kernels:
        return ""
    return (
        "There are no kernels of a device in this trace: only imported traces of torch.profiler "
        "have them."
    )


def _no_fingerprints(frames: Frames) -> str:
    if census(frames).num_fingerprints:
        return ""
    return (
        "There are no values of tensors in this trace: `commtrace run --values` and "
        'commtrace.record(values="op") keep fingerprints of them.'
    )


def _equal_replicas(frames: Frames) -> str:
    if not census(frames).num_fingerprints or len(replicas(frames)):
        return ""
    return "All replicas of tensors that were observed are equal on all ranks."


def _unlaunched(frames: Frames) -> str:
    counts = census(frames)
    if not counts.num_unlaunched:
        return ""
    return (
        f"The launch of {counts.num_unlaunched:,} of {counts.num_kernels:,} kernels is unknown, so "
        "the reason of the idle time before them is, too."
    )


def _no_routes(frames: Frames) -> str:
    if frames.num_ranks < 2 or not frames.num_calls or len(matrix(frames)):
        return ""
    return (
        "No call is known to send data to another rank: the trace lacks its size, its group's "
        "members or its peer."
    )


def _no_splits(frames: Frames) -> str:
    if not frames.num_calls:
        return ""
    if not census(frames).kinds[ALL_TO_ALL]:
        return "There are no all-to-alls."
    return SPLITS.lacks(frames)


def _no_experts(frames: Frames) -> str:
    if _no_splits(frames):
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


def _no_axes(frames: Frames) -> str:
    if not frames.num_calls or (frames.groups["mesh_axis"] != "").any():
        return ""
    return "No process group is known to belong to an axis of a DeviceMesh."


def _only_transfers(frames: Frames) -> str:
    if not frames.num_calls or census(frames).kinds.keys() - TRANSFERS:
        return ""
    return "All calls are point-to-point: there are no collectives."


def _nothing_to_compare(frames: Frames) -> str:
    if not frames.num_calls or frames.num_ranks > 1:
        return ""
    return "There is a single rank, so there are no calls to compare with."


def _muted_findings(frames: Frames) -> str:
    counts = muted(frames)
    if not counts:
        return ""
    each = "; ".join(f"{num} of {rule}: {reason}" for (rule, reason), num in counts.items())
    return f"Findings muted by {frames.settings.path} are omitted ({each})."


def _unanswered_rules(frames: Frames) -> str:
    lacking = unanswered(frames)
    return " ".join(f"Rule {name}: {text}" for name, text in lacking.items())


_STEP_ENDS = {
    "optimizer": "a step ends when the optimizer's step() returns",
    "profiler": "a step ends when step() of torch.profiler is called",
    "scheduler": "a step ends when step() of the LR scheduler returns",
    RECORDING: "the recording counts as a single step",
}
_OF_TIMES = (
    *("overlap", "balance", "activity", "timeline", "wait_states", "skew", "start_skew"),
    *("bandwidth", "overlap_lost"),
)
_OF_WAITS = (
    *("by_rank", "timeline", "wait_states", "rank_waits", "skew", "start_skew", "stragglers"),
    *("activity", "bandwidth", "gpu_time"),
)
_OF_MEASURES = (
    *("by_kind", "by_module", "by_op", "by_group", "by_axis", "by_source", "by_region"),
    *("by_phase", "by_step", "by_rank", "sizes", "flame"),
)
_OF_BLOCKED_TIMES = (
    *(*_OF_MEASURES, "overlap", "overlap_lost", "balance"),
    *(*_OF_WAITS, "findings"),
)
_OF_BYTES = (*_OF_MEASURES, "matrix", "findings")


RULES: tuple[tuple[tuple[str, ...], NoticeCheck], ...] = (
    ((EVERYTHING,), replayed_note),
    ((EVERYTHING,), _no_calls),
    ((EVERYTHING,), _imported),
    ((*_OF_WAITS, "matrix"), _one_rank),
    ((EVERYTHING,), _missing_ranks),
    ((EVERYTHING,), _left_out),
    ((EVERYTHING,), _truncated),
    ((EVERYTHING,), _running),
    ((EVERYTHING,), _dropped),
    ((EVERYTHING,), _sampled),
    (("by_step", "timeline", "overlap", "balance"), _no_steps),
    (("by_module", "flame"), _no_modules),
    (("by_op", "flame", "timeline"), _no_operators),
    (_OF_WAITS, _no_waits),
    (_OF_WAITS, _several_clocks),
    (("overlap", "balance"), _host_clocks),
    (_OF_BLOCKED_TIMES, _untimed),
    (_OF_BYTES, _unsized),
)

MINOR_RULES: tuple[tuple[tuple[str, ...], NoticeCheck], ...] = (
    (_OF_TIMES, _lacking("issue_ns", "The time of issue")),
    (("by_source",), _lacking("source_file", "The source line")),
    (("sizes", "findings", "bandwidth"), _lacking("payload_bytes", "The message size")),
    (("bandwidth",), _lacking("complete_ns", "The time of completion")),
    (
        ("by_region",),
        _none_of("region", "No regions were marked: rec.region(name) labels calls."),
    ),
    (("by_axis",), _no_axes),
    (("by_group",), _lacking("group", "The process group")),
    (_OF_MEASURES, _joined),
    (_OF_WAITS, _unmatched),
    (("matrix",), _no_routes),
    (("all_to_all_splits", "expert_load"), _no_splits),
    (("all_to_all_splits", "expert_load"), _no_experts),
    (("pipeline_stages", "bubbles", "pipeline_schedule"), _no_pipelines),
    (("gpu_time", "kernel_patterns"), _no_kernels),
    (("gpu_time",), _unlaunched),
    (("overlap_lost",), DEPENDENCIES.lacks),
    (("tensors", "replicas", "gradients"), _no_fingerprints),
    (("replicas",), _equal_replicas),
    (("skew", "start_skew"), _only_transfers),
    (("matrix", "consistency", "divergences"), _nothing_to_compare),
    (("findings",), _unanswered_rules),
    (("findings",), _muted_findings),
    (("whatif",), why_not_replayed),
    (("by_step", "overlap", "balance", "timeline"), _found_steps),
)


def notices_of(frames: Frames, name: str = "") -> list[Notice]:
    """Return every limitation of this trace, the gravest first.

    With the `name` of an analysis or a picture, only the rules that limit it are evaluated.
    """
    return [
        Notice(limits, text, is_minor)
        for rules, is_minor in ((RULES, False), (MINOR_RULES, True))
        for limits, rule in rules
        if not name or name in limits or EVERYTHING in limits
        if (text := rule(frames))
    ]


def notices_on(name: str, all_notices: list[Notice]) -> list[str]:
    """Return the sentences of the notices that limit an analysis or picture."""
    return [
        notice.text
        for notice in all_notices
        if name in notice.limits or EVERYTHING in notice.limits
    ]


def _ranks(ranks: list[int]) -> str:
    text = text_of_ranks(ranks)
    return text[0].upper() + text[1:]
