"""Table of all rules, each with the analyses and pictures that it limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commtrace.analyze.findings.needs import DEPENDENCIES
from commtrace.analyze.notices import of_calls, of_recording, of_tables
from commtrace.analyze.replay.words import why_not_replayed
from commtrace.analyze.run.frame import Frames

EVERYTHING = "everything"

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


_OF_PATHS = ("critical_path", "critical_share", "slack", "op_slack", "whatif")
_OF_TIMES = (
    *("overlap", "balance", "activity", "timeline", "wait_states", "skew", "start_skew"),
    *("bandwidth", "overlap_lost", *_OF_PATHS),
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
    ((EVERYTHING,), of_recording.replayed_note),
    ((EVERYTHING,), of_recording.no_calls),
    ((EVERYTHING,), of_recording.imported),
    ((*_OF_WAITS, "matrix"), of_recording.one_rank),
    ((EVERYTHING,), of_recording.missing_ranks),
    ((EVERYTHING,), of_recording.left_out),
    ((EVERYTHING,), of_recording.truncated),
    ((EVERYTHING,), of_recording.running),
    ((EVERYTHING,), of_recording.dropped),
    ((EVERYTHING,), of_recording.sampled),
    (("by_step", "timeline", "overlap", "balance"), of_recording.no_steps),
    (("by_op", "op_slack", "flame", "timeline"), of_calls.no_operators),
    ((*_OF_WAITS, *_OF_PATHS), of_calls.no_waits),
    ((*_OF_WAITS, *_OF_PATHS), of_recording.several_clocks),
    (("overlap", "balance"), of_recording.host_clocks),
    (_OF_BLOCKED_TIMES, of_calls.untimed),
    (_OF_BYTES, of_calls.unsized),
)

MINOR_RULES: tuple[tuple[tuple[str, ...], NoticeCheck], ...] = (
    (("by_module", "flame"), of_calls.no_modules),
    (_OF_TIMES, of_calls.lacking("issue_ns", "The time of issue")),
    (("by_source",), of_calls.lacking("source_file", "The source line")),
    (("sizes", "findings", "bandwidth"), of_calls.lacking("payload_bytes", "The message size")),
    (("bandwidth",), of_calls.lacking("complete_ns", "The time of completion")),
    (
        ("by_region",),
        of_calls.none_of("region", "No regions were marked: rec.region(name) labels calls."),
    ),
    (("by_axis",), of_calls.no_axes),
    (("by_group",), of_calls.lacking("group", "The process group")),
    (_OF_MEASURES, of_recording.joined),
    ((*_OF_WAITS, *_OF_PATHS), of_calls.unmatched),
    (("matrix",), of_calls.no_routes),
    (("all_to_all_splits", "expert_load"), of_tables.no_splits),
    (("all_to_all_splits", "expert_load"), of_tables.no_experts),
    (("pipeline_stages", "bubbles", "pipeline_schedule"), of_tables.no_pipelines),
    (("gpu_time", "kernel_patterns"), of_tables.no_kernels),
    (("gpu_time", *_OF_PATHS), of_tables.unlaunched),
    (("overlap_lost",), DEPENDENCIES.lacks),
    (("tensors", "replicas", "gradients"), of_tables.no_fingerprints),
    (("replicas",), of_tables.equal_replicas),
    (("skew", "start_skew"), of_calls.only_transfers),
    (("matrix", "consistency", "divergences"), of_calls.nothing_to_compare),
    (("findings",), of_tables.unanswered_rules),
    (("findings",), of_tables.muted_findings),
    (("whatif",), why_not_replayed),
    (("by_step", "overlap", "balance", "timeline"), of_recording.found_steps),
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
