"""Rules by which Perfetto's trace_processor imports JSON, as a model of its importer.

`imported` reads a trace as trace_processor does, counts what it would reject or drop under the name
of the rule, and returns the slices and arrows that remain. The rules of the importer's parts:

    json            no NaN, no escaped surrogates, no control characters
    event           phase and ts are there; pid and tid are integers of 32 bits; args is an object
    time            no negative ts or dur; µs as a double give the same ns
    nesting         slices of a track nest or are disjoint, in order of start and falling duration
    depth           at most 512 slices are nested
    flow            an arrow begins and ends at a slice, begins once, and before it ends
    counter         every value is a number
    name            every track with slices has a name

Source: github.com/google/perfetto, src/trace_processor/importers: json_trace_tokenizer.cc,
json_trace_parser_impl.cc and json_parser.h of json; slice_tracker.cc and flow_tracker.cc of common.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

MOST_DEPTH = 512
LARGEST = 2**63 - 1

Track = tuple[int, int]


@dataclass
class Imported:
    """Result of importing a trace."""

    problems: Counter[str] = field(default_factory=Counter)
    slices: dict[Track, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    arrows: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    names: dict[Track, str] = field(default_factory=dict)


def imported(text: str) -> Imported:
    """Import the text of a trace."""
    found = Imported()
    if _has_bad_text(text):
        found.problems["json"] += 1
    try:
        document = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except ValueError:
        found.problems["json"] += 1
        return found
    events = []
    for place, event in enumerate(document["traceEvents"]):
        problem = _problem_of(event)
        if problem:
            found.problems[problem] += 1
        elif event["ph"] == "M":
            if event["name"] == "thread_name" and event["args"]["name"]:
                found.names[event["pid"], event["tid"]] = event["args"]["name"]
        else:
            start, lasts = _ns(event["ts"]), _ns(event.get("dur", 0))
            key = LARGEST - lasts if event["ph"] == "X" else LARGEST
            events.append((start, key, place, lasts, event))
    _process(found, sorted(events, key=lambda each: each[:3]))
    found.problems["name"] += len(found.slices.keys() - found.names.keys())
    found.problems = +found.problems
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _has_bad_text(text: str) -> bool:
    surrogates = re.search(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]", text)
    return bool(surrogates or re.search("[\x00-\x09\x0b-\x1f\x7f]", text))


def _problem_of(event: dict[str, Any]) -> str:
    phase = event.get("ph")
    if not isinstance(phase, str) or not phase:
        return "event"
    numbers = [event.get("pid"), event.get("tid", 0)]
    if not all(type(number) is int and 0 <= number < 2**32 for number in numbers):
        return "event"
    if not isinstance(event.get("args", {}), dict) or not isinstance(event.get("name"), str):
        return "event"
    if phase == "M":
        return ""
    times = [event.get("ts"), event.get("dur", 0 if phase != "X" else None)]
    if any(type(time) not in (int, Decimal) for time in times):
        return "event"
    if any(time < 0 or _ns(time) != time * 1000 for time in times):
        return "time"
    if phase == "C":
        values = event["args"].values()
        is_number = all(type(value) in (int, float, Decimal) for value in values)
        return "" if values and is_number else "counter"
    return ""


def _ns(time: int | Decimal) -> int:
    """Convert µs as the importer does: a double times 1000, rounded."""
    return time * 1000 if type(time) is int else round(float(time) * 1000)


def _process(found: Imported, events: list[Any]) -> None:
    stacks: dict[Track, list[dict[str, Any]]] = defaultdict(list)
    sources: dict[Any, dict[str, Any]] = {}
    for start, _, _, lasts, event in events:
        if event["ph"] == "C":
            continue
        track = event["pid"], event["tid"]
        stack = stacks[track]
        if event["ph"] == "X":
            if not _close(stack, start, lasts):
                found.problems["nesting"] += 1
            elif len(stack) >= MOST_DEPTH:
                found.problems["depth"] += 1
            else:
                each = {"start": start, "lasts": lasts, "depth": len(stack), "event": event}
                stack.append(each)
                found.slices[track].append(each)
            continue
        arrow = event["id"], event["cat"], event["name"]
        if type(event["id"]) is not int or not 0 <= event["id"] < 2**63 or not stack:
            found.problems["flow"] += 1
        elif event["ph"] == "s":
            found.problems["flow"] += arrow in sources
            sources[arrow] = stack[-1]
        elif arrow not in sources or (event["ph"] == "f" and event.get("bp") != "e"):
            found.problems["flow"] += 1
        else:
            found.arrows.append((sources[arrow], stack[-1]))
            sources[arrow] = stack[-1]


def _close(stack: list[dict[str, Any]], start: int, lasts: int) -> bool:
    """Remove the slices that have ended; return whether the next slice nests in the rest."""
    for each in reversed(stack[:]):
        end = each["start"] + each["lasts"]
        is_instant = each["lasts"] == 0 and lasts == 0
        if end < start or (end == start and not is_instant):
            stack.pop()
        elif start < end < start + lasts:
            return False
    return True
