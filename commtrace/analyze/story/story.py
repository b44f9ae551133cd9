"""The `Story` of a call: everything known about it in a single value, assembled by `explain`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from commtrace.analyze.findings import detected
from commtrace.analyze.measures.arrivals import end_ns
from commtrace.analyze.replay.slack import known_slack
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.story.peers import MatchedCalls, Peer, matched_calls, ranks_of
from commtrace.analyze.story.why import CallReason, what_is_unknown, why
from commtrace.analyze.waits.lateness import Lateness, lateness_at
from commtrace.collective_table import KINDS, busbw_factor
from commtrace.tracefile.sources import SourceLine, excerpt, lines_around, read_lines
from commtrace.units import NANOSECONDS_PER_SECOND

NO_END = (
    "The completion time is unknown: no wait for the call was recorded, it was in progress when "
    "the recording ended, or the device does not report it."
)
NO_SOURCE = "The stack of the calling thread contains no line of the program."
NO_WAIT = "The wait time is unknown"
NO_PEERS = "the calls of its peers are not in the trace, differ from it, or have no time"


@dataclass(frozen=True, slots=True)
class Where:
    """Location of the call in the program.

    Attributes:
        text: The source line without indentation.
        lines: The source line and those around it.
        are_recorded: `lines` are as they were when recorded; otherwise, as the file is now.

    The other attributes are columns of table `comm`.
    """

    source_file: str
    source_line: int
    source_function: str
    via: str
    text: str
    lines: tuple[SourceLine, ...]
    are_recorded: bool
    stack: tuple[str, ...]
    module: str
    module_class: str
    module_call: int
    phase: str
    step: int
    region: str
    thread: int
    stage: int
    micro_batch: int
    direction: str


@dataclass(frozen=True, slots=True)
class CallGroup:
    """The process group."""

    name: str
    description: str
    mesh_axis: str
    backend: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Time:
    """Times of the call; -1 and nan stand for unknown.

    Attributes:
        after_start_ns: Issue, since the start of the run.
        lasted_ns: From issue to completion.
        call_ns: Duration of the call itself.
        blocked_ns: Time for which the call blocked its rank.
        hidden_ns: Time in flight in which the rank was not blocked.
        wait_ns: Part of `blocked_ns` before the last peer arrived.
        transfer_ns: Part of `blocked_ns` after the last peer arrived.
        waited_for: Rank whose arrival ended the wait.
        device_ns: Time for which a device ran it.
        slack_ns: How much longer its transfer could take before the run ends later; 0 on the
            critical path.
    """

    after_start_ns: int
    lasted_ns: int
    call_ns: int
    blocked_ns: int
    hidden_ns: int
    wait_ns: int
    transfer_ns: int
    waited_for: int
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    device_ns: int
    slack_ns: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A finding that the call is part of."""

    rule: str
    title: str
    advice: str


@dataclass(frozen=True, slots=True)
class Story:
    """Everything known about a call; `unknown` lists the gaps, with the reason.

    `lateness` describes the straggler at the call's collective, if others waited for it.
    """

    rank: int
    id: int
    kind: str
    native_op: str
    reduce_op: str
    root: int
    peer: int
    is_async: bool
    dtype: str
    input_shapes: str
    output_shapes: str
    payload_bytes: int
    planned_bytes: int
    wire_bytes: int
    number: int
    num_alike: int
    where: Where
    why: CallReason
    group: CallGroup
    time: Time
    peers: tuple[Peer, ...]
    missing_ranks: tuple[int, ...]
    lateness: Lateness | None
    findings: tuple[Suggestion, ...]
    unknown: dict[str, str]


def explain(frames: Frames, call: pd.Series) -> Story:
    """Return the story of a row of table `comm`, as returned by `find_call`."""
    row: Any = call.name
    reason, collective, group = why(frames, call), matched_calls(frames, call), _group(frames, call)
    time = _time(frames, call, collective, len(group.ranks))
    unknown = what_is_unknown(frames, reason) | _unknown_of_time(call, time, collective)
    if not call["source_file"]:
        unknown["source"] = NO_SOURCE
    where = _where(frames, call)
    if where.lines and not where.are_recorded:
        unknown["lines"] = (
            "The source lines are from the current file, since the trace does not have them."
        )
    return Story(
        rank=int(call["rank"]),
        id=int(call["id"]),
        kind=str(call["kind"]),
        native_op=str(call["native_op"]),
        reduce_op=str(call["reduce_op"]),
        root=int(call["root"]),
        peer=int(call["peer"]),
        is_async=bool(call["is_async"]),
        dtype=str(call["dtype"]),
        input_shapes=str(call["input_shapes"]),
        output_shapes=str(call["output_shapes"]),
        payload_bytes=int(call["payload_bytes"]),
        planned_bytes=int(call["planned_bytes"]),
        wire_bytes=int(call["wire_bytes"]),
        number=collective.number,
        num_alike=_num_alike(frames, call),
        where=where,
        why=reason,
        group=group,
        time=time,
        peers=collective.peers,
        missing_ranks=collective.missing_ranks,
        lateness=lateness_at(frames, row),
        findings=_findings(frames, call),
        unknown=unknown,
    )


def _where(frames: Frames, call: pd.Series) -> Where:
    file, line = str(call["source_file"]), int(call["source_line"])
    recorded = lines_around(frames.sources.itertuples(), file, line)
    lines = recorded or _lines_now(frames, file, line)
    return Where(
        source_file=file,
        source_line=line,
        source_function=str(call["source_function"]),
        via=str(call["via"]),
        text=next((each.text.strip() for each in lines if each.number == line), ""),
        lines=lines,
        are_recorded=bool(recorded),
        stack=tuple(str(call["stack"]).splitlines()),
        module=str(call["module"]),
        module_class=str(call["module_class"]),
        module_call=int(call["module_call"]),
        phase=str(call["phase"]),
        step=int(call["step"]),
        region=str(call["region"]),
        thread=int(call["thread"]),
        stage=int(call["stage"]),
        micro_batch=int(call["micro_batch"]),
        direction=str(call["direction"]),
    )


def _lines_now(frames: Frames, file: str, line: int) -> tuple[SourceLine, ...]:
    """Read the lines from the file as it is now; empty if it has no such line.

    A relative path is looked up in the working directory and beside the trace.
    """
    if not file or line < 1:
        return ()
    folders = [Path()] if frames.path is None else [Path(), frames.path.parent]
    found = next(filter(None, (read_lines(folder / file) for folder in folders)), [])
    return excerpt(found, line) if line <= len(found) else ()


def _group(frames: Frames, call: pd.Series) -> CallGroup:
    name = str(call["group"])
    rows = frames.groups[frames.groups["name"] == name].to_dict("records")
    row = rows[0] if rows else {}
    facts = {key: str(row.get(key, "")) for key in ("description", "mesh_axis", "backend")}
    return CallGroup(name=name, ranks=ranks_of(frames, name), **facts)


def _time(frames: Frames, call: pd.Series, collective: MatchedCalls, group_size: int) -> Time:
    this = next(peer for peer in collective.peers if peer.is_this)
    issued = int(call["issue_ns"])
    ended = int(end_ns(pd.DataFrame([call])).iloc[0])
    is_known = issued >= 0 and (call["complete_ns"] >= issued or call["blocked_ns"] >= 0)
    lasted, blocked = ended - issued if is_known else -1, int(call["blocked_ns"])
    algbw = busbw = float("nan")
    if lasted > 0 and call["payload_bytes"] > 0:
        algbw = call["payload_bytes"] / (lasted / NANOSECONDS_PER_SECOND)
        if call["kind"] in KINDS and group_size:
            busbw = algbw * busbw_factor(str(call["kind"]), group_size)
    return Time(
        after_start_ns=issued - frames.start_ns if issued >= 0 else -1,
        lasted_ns=lasted,
        call_ns=int(call["call_ns"]),
        blocked_ns=blocked,
        hidden_ns=max(lasted - blocked, 0) if lasted >= 0 and blocked >= 0 else -1,
        wait_ns=this.wait_ns,
        transfer_ns=this.transfer_ns,
        waited_for=collective.waited_for,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        device_ns=int(call["device_ns"]),
        slack_ns=int(known_slack(frames).get(call.name, -1)),
    )


def _unknown_of_time(call: pd.Series, time: Time, collective: MatchedCalls) -> dict[str, str]:
    unknown = {}
    if call["complete_ns"] < 0:
        unknown["end"] = NO_END
    if time.wait_ns < 0:
        listed = ", ".join(map(str, collective.missing_ranks))
        why_not = f"the call of rank {listed} is not in the trace" if listed else NO_PEERS
        unknown["wait"] = f"{NO_WAIT}: {why_not}."
    return unknown


def _num_alike(frames: Frames, call: pd.Series) -> int:
    """Count the calls of its rank made for the same operator at the same place."""
    return sum(frames.by_ranks(_num_alike_of_part, call))


def _num_alike_of_part(part: Frames, call: pd.Series) -> int:
    comm = part.comm
    same = comm["rank"] == call["rank"]
    for name in ("source_file", "source_line", "module", "phase", "op", "kind", "group"):
        same &= comm[name] == call[name]
    return int(same.sum())


def _findings(frames: Frames, call: pd.Series) -> tuple[Suggestion, ...]:
    """Return the findings that include the call."""
    return tuple(
        Suggestion(rule.name, finding.title, finding.advice)
        for rule, finding in detected(frames)
        if call.name in finding.rows
    )
