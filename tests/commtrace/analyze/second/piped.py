"""Idle time of pipeline stages, by loops over the rows, with replays by recursion."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from statistics import mean, median
from typing import Any

from tests.commtrace.analyze.second.run import Run

Row = dict[str, Any]
Key = tuple[int, int, str]
"""Stage, micro-batch and action."""
CAUSES = (
    "warm_up", "drain", "imbalance", "straggler", "late_send", "blocked_receive", "transfer",
)  # fmt: skip


class Round:
    """Actions of a pipeline between the first and the last of a call of its schedule."""

    def __init__(self, pipeline: int, step: int, number: int, acts: list[Any]) -> None:
        self.pipeline, self.step, self.number, self.acts = pipeline, step, number, acts
        self.start = min(act.start_ns for act in acts)
        self.end = max(act.start_ns + act.duration_ns for act in acts)
        self.by_key = {(act.stage, act.micro_batch, act.action): act for act in acts}
        self.of_rank: dict[int, list[Any]] = {}
        for act in sorted(acts, key=lambda act: act.start_ns):
            self.of_rank.setdefault(act.rank, []).append(act)
        self.before = {
            _key(second): _key(first)
            for own in self.of_rank.values()
            for first, second in pairwise(own)
        }

    def inputs(self, key: Key) -> list[Key]:
        stage, number, action = key
        wanted: list[Key] = []
        if action == "forward":
            wanted = [(stage - 1, number, "forward")]
        if action in ("backward", "backward_input"):
            wanted = [(stage + 1, number, each) for each in ("backward", "backward_input")]
            wanted.append((stage, number, "forward"))
        if action == "backward_weight":
            wanted = [(stage, number, "backward_input")]
        return [each for each in wanted if each in self.by_key]

    def source(self, key: Key) -> Any:
        found = [each for each in self.inputs(key) if each[0] != key[0]]
        return self.by_key[found[0]] if found else None

    def replay(self, time: Callable[[Key], float], delay: Callable[[Key], float]) -> Times:
        @cache
        def begin(key: Key) -> float:
            needs = [*self.inputs(key), *([self.before[key]] if key in self.before else [])]
            return max([0.0, *(begin(each) + time(each) for each in needs)]) + delay(key)

        return {key: (begin(key), begin(key) + time(key)) for key in self.by_key}

    def gaps(self, times: Times, rank: int) -> list[int]:
        keys = [_key(act) for act in self.of_rank[rank]]
        ends = [0.0, *(times[key][1] for key in keys)]
        begins = [*(times[key][0] for key in keys), max(end for _, end in times.values())]
        return [round(begin - end) for end, begin in zip(ends, begins, strict=True)]


Times = dict[Key, tuple[float, float]]


def _key(act: Any) -> Key:
    return act.stage, act.micro_batch, act.action


def _rounds(run: Run) -> list[Round]:
    acts = run.pipeline_actions
    pipelines = _pipelines(run, sorted({act.rank for act in acts}))
    found: dict[tuple[int, int, int], list[Any]] = {}
    for rank in pipelines:
        seen: set[Key] = set()
        step, counts = None, dict[int, int]()
        for act in sorted((a for a in acts if a.rank == rank), key=lambda act: act.start_ns):
            if act.step != step or _key(act) in seen:
                seen, step = set(), act.step
                counts[step] = counts.get(step, -1) + 1
            seen.add(_key(act))
            found.setdefault((pipelines[rank], step, counts[step]), []).append(act)
    made = [Round(*key, own) for key, own in found.items()]
    return sorted(made, key=lambda each: (each.pipeline, each.start))


def _transfers(run: Run) -> list[Any]:
    return [
        each
        for each in run.comm
        if each.kind in ("send", "recv") and min(each.stage, each.micro_batch, each.issue_ns) >= 0
    ]


def _pipelines(run: Run, ranks: list[int]) -> dict[int, int]:
    near: dict[int, set[int]] = {rank: {rank} for rank in ranks}
    for each in _transfers(run):
        if each.rank in near and each.peer in near:
            near[each.rank].add(each.peer)
            near[each.peer].add(each.rank)
    for _ in ranks:
        near = {rank: set().union(*(near[each] for each in own)) for rank, own in near.items()}
    firsts = sorted({min(own) for own in near.values()})
    return {rank: firsts.index(min(near[rank])) for rank in ranks}


def _medians(rounds: list[Round], pipeline: int) -> dict[tuple[int, str], float]:
    times: dict[tuple[int, str], list[int]] = {}
    for each in rounds:
        if each.pipeline == pipeline:
            for act in each.acts:
                times.setdefault((act.stage, act.action), []).append(act.duration_ns)
    return {key: float(median(values)) for key, values in times.items()}


def _equal(times: dict[tuple[int, str], float], action: str) -> float:
    return mean(time for (_, each), time in times.items() if each == action)


class _Late:
    """Delays of the actions of a round."""

    def __init__(self, run: Run, of: Round) -> None:
        self.parts: dict[Key, tuple[int, int]] = {}
        self.calls: dict[Key, tuple[Any, Any, int]] = {}
        for key, act in of.by_key.items():
            self._find(_transfers(run), of, key, act)

    def _find(self, calls: list[Any], of: Round, key: Key, act: Any) -> None:
        direction = "forward" if act.action == "forward" else "backward"
        before = of.by_key.get(of.before.get(key, (-1, -1, "")))
        free = of.start if before is None else before.start_ns + before.duration_ns
        ends = [o.start_ns + o.duration_ns for o in (of.by_key[each] for each in of.inputs(key))]
        ready = max([free, *ends])
        source = of.source(key)
        sent = received = None
        delay = -1
        if source is not None and source.rank != act.rank:
            end = source.start_ns + source.duration_ns
            sent = _last(
                calls, "send", source.rank, (source.stage, act.micro_batch, direction),
                source.start_ns, max(act.start_ns, end),
            )  # fmt: skip
            received = _last(
                calls, "recv", act.rank, (act.stage, act.micro_batch, direction),
                of.start, act.start_ns,
            )  # fmt: skip
            delay = -1 if sent is None else max(0, sent.issue_ns - end)
        own = _last(calls, "send", act.rank, None, free, act.start_ns)
        left = max(0, act.start_ns - ready)
        moments = [each.issue_ns for each in (sent, own) if each is not None]
        late = min(left, max([0, *(moment - ready for moment in moments)]))
        if own is not None and late > 0 and own.issue_ns - ready == late:
            sent, delay = own, own.issue_ns - free
        at = ready + late
        blocked = 0
        if received is not None:
            blocked = min(left - late, max(0, received.issue_ns - at))
        # In these programs, no other receive blocks a rank in the rest of the time.
        self.parts[key] = late, blocked
        self.calls[key] = sent, received, delay


def _last(
    calls: list[Any], kind: str, rank: int, part: tuple[int, int, str] | None, begin: int, end: int
) -> Any:
    found = [
        each
        for each in calls
        if (each.kind, each.rank) == (kind, rank)
        and part in (None, (each.stage, each.micro_batch, each.direction))
        and begin <= each.issue_ns <= end
    ]
    return max(found, key=lambda each: each.issue_ns) if found else None


def _filled(gaps: list[int], replays: list[list[int]], names: list[str]) -> list[Row]:
    """Give each gap its causes: what each replay has beyond the replays before it, in time."""
    rest = list(gaps)
    parts: list[Row] = [{} for _ in gaps]
    done = 0
    for level, cause in enumerate(("", *CAUSES[2:6])):
        most = max(sum(each) for each in replays[: level + 1])
        time = max(0, min(sum(gaps), most) - done)
        done += time
        taken = [sum(gap - left for gap, left in zip(gaps[: i + 1], rest[: i + 1], strict=True))
                 for i in range(len(gaps))]  # fmt: skip
        given = [0] * len(gaps)
        for i in range(len(gaps)):
            by_then = max(sum(each[: i + 1]) for each in replays[: level + 1])
            room = by_then - taken[i] - sum(given)
            given[i] = max(0, min(rest[i], room, time - sum(given)))
        for i in reversed(range(len(gaps))):
            given[i] += max(0, min(rest[i] - given[i], time - sum(given)))
        for i, part in enumerate(given):
            if part > 0:
                parts[i][cause or names[i]] = part
                rest[i] -= part
    for row, left in zip(parts, rest, strict=True):
        if left > 0:
            row["transfer"] = left
    return parts


def _of_round(run: Run, of: Round, times: dict[tuple[int, str], float]) -> list[Row]:
    late = _Late(run, of)
    none: Callable[[Key], float] = lambda key: 0.0  # noqa: E731
    ran: Callable[[Key], float] = lambda key: float(of.by_key[key].duration_ns)  # noqa: E731
    replays = [
        of.replay(lambda key: _equal(times, key[2]), none),
        of.replay(lambda key: times[key[0], key[2]], none),
        of.replay(ran, none),
        of.replay(ran, lambda key: late.parts[key][0]),
        of.replay(ran, lambda key: sum(late.parts[key])),
    ]
    actual = {
        key: (float(act.start_ns - of.start), float(act.start_ns - of.start + act.duration_ns))
        for key, act in of.by_key.items()
    }
    found: list[Row] = []
    for rank, own in of.of_rank.items():
        gaps = of.gaps(actual, rank)
        forwards = [i for i, act in enumerate(own) if act.action == "forward"]
        last = max(forwards, default=-1)
        names = ["warm_up" if i <= last else "drain" for i in range(len(gaps))]
        every = _filled(gaps, [of.gaps(each, rank) for each in replays], names)
        ends = [of.start, *(act.start_ns + act.duration_ns for act in own)]
        for i, (begin, parts) in enumerate(zip(ends, every, strict=True)):
            awaited = own[i] if i < len(own) else None
            at = begin
            for cause, part in parts.items():
                place = rank, own[-1] if awaited is None else awaited
                found.append(_row(of, place, cause, (at, at + part), awaited, late))
                at += part
    return found


def _row(
    of: Round, place: tuple[int, Any], cause: str, span: tuple[int, int], act: Any, late: _Late
) -> Row:
    sent, received, delay = (None, None, -1) if act is None else late.calls[_key(act)]
    source = None if act is None else of.source(_key(act))
    pair = (sent, received) if cause == "late_send" else (received, sent)
    call = pair[0] or pair[1]
    return {
        "rank": place[0],
        "step": of.step,
        "round": of.number,
        "stage": place[1].stage,
        "cause": cause,
        "start_ns": span[0],
        "duration_ns": span[1] - span[0],
        "share": (span[1] - span[0]) / (of.end - of.start),
        "action": "" if act is None else act.action,
        "micro_batch": -1 if act is None else act.micro_batch,
        "source_stage": -1 if source is None else source.stage,
        "source_rank": -1 if source is None else source.rank,
        "transfer": "" if call is None else f"{call.rank}:{call.id}",
        "send_delay_ns": delay,
    }


def bubbles(run: Run) -> list[Row]:
    rounds = _rounds(run)
    return [row for each in rounds for row in _of_round(run, each, _medians(rounds, each.pipeline))]


def pipeline_stages(run: Run) -> list[Row]:
    rounds, idle = _rounds(run), bubbles(run)
    found: list[Row] = []
    for pipeline in sorted({each.pipeline for each in rounds}):
        own = [each for each in rounds if each.pipeline == pipeline]
        times = _medians(rounds, pipeline)
        for stage, rank in sorted({(act.stage, act.rank) for each in own for act in each.acts}):
            parts = {
                f"{cause}_ns": sum(
                    row["duration_ns"]
                    for row in idle
                    if (row["rank"], row["stage"], row["cause"]) == (rank, stage, cause)
                )
                / len(own)
                for cause in CAUSES
            }
            split = [times.get((stage, f"backward_{each}")) for each in ("input", "weight")]
            whole = times.get((stage, "backward"))
            known = [time for time in split if time is not None]
            found.append(
                {
                    "pipeline": pipeline,
                    "stage": stage,
                    "rank": rank,
                    "num_rounds": len(own),
                    "num_micro_batches": max(
                        len({act.micro_batch for act in each.acts}) for each in own
                    ),
                    "forward_ns": times.get((stage, "forward"), float("nan")),
                    "backward_ns": whole
                    if whole is not None
                    else sum(known)
                    if known
                    else float("nan"),
                    "busy_ns": sum(
                        act.duration_ns
                        for each in own
                        for act in each.acts
                        if (act.stage, act.rank) == (stage, rank)
                    )
                    / len(own),
                    "idle_ns": sum(parts.values()),
                    **parts,
                    "round_ns": float(median(each.end - each.start for each in own)),
                    # Splits are those of pipelines/test_stages.py.
                    "num_layers": -1,
                    "better_layers": -1,
                    "better_round_ns": float("nan"),
                }
            )
    return found


def pipeline_schedule(run: Run) -> list[Row]:
    rounds = _rounds(run)
    found: list[Row] = []
    for of in rounds:
        times = _medians(rounds, of.pipeline)
        equal = {action: _equal(times, action) for _, action in times}
        ideal = of.replay(lambda key, equal=equal: equal[key[2]], lambda key: 0.0)
        found += [
            {
                "pipeline": of.pipeline,
                "step": of.step,
                "round": of.number,
                "rank": act.rank,
                "stage": act.stage,
                "micro_batch": act.micro_batch,
                "action": act.action,
                "start_ns": act.start_ns,
                "begin_ns": act.start_ns - of.start,
                "duration_ns": act.duration_ns,
                "ideal_begin_ns": ideal[_key(act)][0],
                "ideal_duration_ns": equal[act.action],
            }
            for act in of.acts
        ]
    return found


def piped(run: Run) -> list[tuple[list[Any], float, str]]:
    """Findings: idle time of the schedule, of clear causes, and of several together."""
    rounds = _rounds(run)
    if not rounds:
        return []
    first = min(each.start for each in rounds)
    late = [each for each in rounds if each.start > first] if len(rounds) >= 3 else rounds
    of_rank = _pipelines(run, sorted({act.rank for act in run.pipeline_actions}))
    keys = {(each.pipeline, each.step, each.number): each for each in late}
    rows = [
        (keys[key], row)
        for row in bubbles(run)
        if (key := (of_rank[row["rank"]], row["step"], row["round"])) in keys
    ]

    def idle(causes: tuple[str, ...], within: list[Round] = late) -> float:
        return sum(
            row["duration_ns"] for of, row in rows if row["cause"] in causes and of in within
        )

    def usual(causes: tuple[str, ...], share: float) -> bool:
        whole = {of: (of.end - of.start) * len(of.of_rank) for of in late}
        num = sum(idle(causes, [of]) >= max(share * whole[of], 1_000_000) for of in late)
        return num >= len(late) / 2

    beyond, schedule = CAUSES[2:], CAUSES[:2]
    action = mean(act.duration_ns for each in late for act in each.acts)
    is_long = action >= 3_000_000
    most = [each for each in beyond if 2 * idle((each,)) >= idle(beyond)]
    clear = [
        each for each in CAUSES[2:6]
        if (each == "imbalance" or (is_long and each in most)) and usual((each,), 0.1)
    ]  # fmt: skip
    others = tuple(each for each in beyond if each not in clear or each not in most)
    found: list[tuple[str, ...]] = [(each,) for each in clear]
    if _ideal_share(rounds, late) >= 0.3 and usual(schedule, 0):
        found.append(schedule)
    elif usual(others, 0.4):
        found = [each for each in found if each[0] not in others] + [others]
    results = []
    for causes in found:
        names = {row["transfer"] for _, row in rows if row["cause"] in causes}
        calls = [call for call in run.comm if f"{call.rank}:{call.id}" in names and call.stage >= 0]
        if calls:
            results.append((calls, 0.0, ""))
    return results


def _ideal_share(rounds: list[Round], late: list[Round]) -> float:
    """Idle part of rounds of equal stages without delays."""
    busy = whole = 0.0
    for of in late:
        times = _medians(rounds, of.pipeline)
        equal = {action: _equal(times, action) for _, action in times}
        ran = of.replay(lambda key, equal=equal: equal[key[2]], lambda key: 0.0)
        busy += sum(end - begin for begin, end in ran.values())
        whole += max(end for _, end in ran.values()) * len(of.of_rank)
    return 1 - busy / whole if whole else 0.0
