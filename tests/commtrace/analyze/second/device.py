"""Second computation of tables of devices: their time, and the patterns of their kernels."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from commtrace.device_kernels import KERNELS
from tests.commtrace.analyze.second.run import Interval, Run, ratio

PARTS = (
    *("compute", "exposed_wait", "exposed_transfer", "exposed_unknown", "overlapped", "copy"),
    *("other", "idle_host", "idle_kernel", "idle_launch", "idle_unknown"),
)
SORTS = {"compute": "compute", "memcpy": "copy", "memset": "copy", "": "other"}


def gpu_time(run: Run) -> list[dict[str, Any]]:
    """Each instant between two edges of a device's kernels, launches and steps, in turn."""
    every = [each for each in run.kernels if each.start_ns >= 0 and each.duration_ns >= 0]
    found = []
    for rank, device in sorted({(each.rank, each.device) for each in every}):
        kernels = [each for each in every if (each.rank, each.device) == (rank, device)]
        windows = _windows(run, rank, kernels)
        edges = {edge for spans in windows.values() for span in spans for edge in span}
        for each in kernels:
            edges |= {each.start_ns, _end(each), each.launch_ns, _arrival(run, each)}
        edges = sorted(edges)
        for stream in sorted({each.stream for each in kernels} | {-1}):
            own = kernels if stream < 0 else [each for each in kernels if each.stream == stream]
            parts = [
                (span, _parts(run, own, kernels, stream < 0, span)) for span in pairwise(edges)
            ]
            for step, spans in windows.items():
                lasts = dict.fromkeys(PARTS, 0)
                for (first, last), names in parts:
                    if any(begin <= first and last <= end for begin, end in spans):
                        for name in names:
                            lasts[name] += last - first
                total = sum(end - begin for begin, end in spans)
                found.append(
                    {"rank": rank, "device": device, "stream": stream, "step": step}
                    | {"duration_ns": total}
                    | {f"{name}_ns": lasts[name] for name in PARTS}
                    | {f"{name}_share": ratio(lasts[name], total) for name in PARTS}
                )
    return found


def _end(kernel: Any) -> int:
    return kernel.start_ns + kernel.duration_ns


def _windows(run: Run, rank: int, kernels: list[Any]) -> dict[int, list[Interval]]:
    """The steps, and the time outside of them between the first and the last kernel."""
    steps = [step for step in run.steps if step.rank == rank]
    windows = {step.step: [(step.start_ns, step.end_ns)] for step in steps}
    begin = max(min(each.start_ns for each in kernels), run.ranks[rank].start_ns)
    end = min(max(_end(each) for each in kernels), run.ranks[rank].end_ns)
    edges = sorted({begin, end} | {e for s in steps for e in (s.start_ns, s.end_ns)})
    outside = [
        (first, last)
        for first, last in pairwise(edges)
        if begin <= first and last <= end
        if not any(step.start_ns <= first and last <= step.end_ns for step in steps)
    ]
    return windows | ({-1: outside} if outside or not steps else {})


def _arrival(run: Run, kernel: Any) -> int:
    """Arrival of the last peer at a kernel's call; -1 if unknown."""
    last = run.last_of.get((kernel.rank, kernel.call_id))
    return last.issue_ns if last is not None and kernel.category == "communication" else -1


def _parts(run: Run, own: list[Any], every: list[Any], is_whole: bool, span: Interval) -> set[str]:
    """Names of the parts that an interval without edges counts for."""
    running = [each for each in own if each.start_ns <= span[0] and _end(each) >= span[1]]
    running = [each for each in running if each.duration_ns]
    busy = [each for each in every if each.start_ns <= span[0] and _end(each) >= span[1]]
    is_computing = any(each.category == "compute" and each.duration_ns for each in busy)
    sorts = {SORTS.get(each.category) for each in running}
    sent = [each for each in running if each.category == "communication"]
    if "compute" in sorts:
        return {"compute", "overlapped"} if sent and is_whole else {"compute"}
    if sent:
        if is_computing:
            return {"overlapped"}
        arrivals = [_arrival(run, each) for each in sent]
        if any(0 <= arrival <= span[0] for arrival in arrivals):
            return {"exposed_transfer"}
        return {"exposed_unknown"} if min(arrivals) < 0 else {"exposed_wait"}
    if sorts:
        return {"copy" if "copy" in sorts else "other"}
    later = [each for each in own if each.start_ns >= span[1]]
    begin = min((each.start_ns for each in later), default=0)
    launches = [each.launch_ns for each in later if each.start_ns == begin]
    if not launches:
        return {"idle_host"}
    if min(launches) < 0:
        return {"idle_unknown"}
    if min(launches) > span[0]:
        return {"idle_host"}
    return {"idle_kernel" if any(each.duration_ns for each in busy) else "idle_launch"}


KIND_WORDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
WORDS = (
    *("nccl", "rccl", "allreduce", "allgather", "reducescatter", "alltoall", "sendrecv"),
    *("nvshmem", "rocshmem", "deepep", "intranode", "internode", "multimem", "symmmem"),
    *("crossdevice", "userbuffers"),
)


def kernel_patterns(run: Run) -> list[dict[str, Any]]:
    """Kernels by name, individually."""
    kinds = {(call.rank, call.id): call.kind for call in run.comm}
    cells: dict[tuple[str, str, bool], list[Any]] = {}
    facts = {}
    for each in run.kernels:
        pattern = next((one for one in KERNELS if re.search(one, each.name)), "")
        plain = each.name.lower().replace("_", "")
        is_sent = each.category == "communication"
        is_similar = bool(pattern) or any(word in plain for word in WORDS)
        if not is_sent and not (is_similar and each.category == "compute"):
            continue
        told = next((kind for word, kind in KIND_WORDS.items() if word in plain), "")
        kind = kinds.get((each.rank, each.call_id), "") or told
        cells.setdefault((each.name, kind, is_sent), []).append(each)
        by = "built-in" if pattern else "description" if is_sent else "nothing"
        word = re.search(r"[\w:]*(?:" + "|".join(_loose(word) for word in WORDS) + r")[\w:]*",
                         each.name, re.IGNORECASE)  # fmt: skip
        line = f"'*{word[0]}*' = \"{told or 'KIND'}\"" if word else ""
        facts[each.name, kind, is_sent] = pattern, by, line if by == "nothing" else ""
    return [
        {
            "name": name,
            "kind": kind,
            "is_communication": is_sent,
            "matched_by": facts[name, kind, is_sent][1],
            "pattern": facts[name, kind, is_sent][0],
            "num_kernels": len(kernels),
            "time_ns": sum(max(each.duration_ns, 0) for each in kernels),
            "setting": facts[name, kind, is_sent][2],
        }
        for (name, kind, is_sent), kernels in cells.items()
    ]


def _loose(word: str) -> str:
    """The word with or without underscores between its letters."""
    return "_?".join(word)
