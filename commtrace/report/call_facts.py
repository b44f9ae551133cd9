"""Facts shown in the panel of a call in addition to its columns, for the page's script.

Each is stored once for all calls that share it: a group's members, a layout in words, a finding,
the source lines around a place, the operators around a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze import Frames
from commtrace.analyze.findings import detected
from commtrace.analyze.measures.census import census
from commtrace.analyze.story.story import NO_END, NO_PEERS, NO_SOURCE, NO_WAIT
from commtrace.analyze.story.why import RecordedReason, what_is_unknown, words_of
from commtrace.analyze.waits.collectives import NOBODY, collectives
from commtrace.analyze.waits.lateness import lateness_at
from commtrace.collective_table import KINDS, busbw_factor
from commtrace.report.answers import MAX_CARDS, Answers
from commtrace.tracefile.sources import MARGIN, MAX_CHARACTERS

MAX_FINDINGS = 1000
MAX_STRAGGLERS = 1000
"""Largest number of stragglers whose reason the page has."""
MAX_DEPTH = 32
"""Largest number of enclosing operators that are named for a call."""


def call_facts(answers: Answers, sites: pd.DataFrame) -> dict[str, Any]:
    """Return the facts by name; `sites` are the call sites of `call_store`."""
    frames, detail = answers.frames, answers.detail
    specs = {*sites["source_spec"], *sites["target_spec"]} - {""}
    return {
        "groups": {row["name"]: _group(frames, row) for row in frames.groups.to_dict("records")},
        "layouts": {spec: words_of(str(spec)) for spec in sorted(specs)},
        "findings": _findings(answers),
        "lateness": _lateness(detail.frames),
        "shown_ranks": None if detail.are_all_ranks else detail.ranks,
        "is_whole": detail.is_whole,
        "sources": _sources(frames),
        "margin": MARGIN,
        "texts": {
            "no_source": NO_SOURCE,
            "no_end": NO_END,
            "no_wait": NO_WAIT,
            "no_peers": NO_PEERS,
        },
    }


def _group(frames: Frames, row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a group's members, its names, and its factors from algbw to busbw, by kind."""
    ranks = [int(rank) for rank in str(row["ranks"]).split(",") if rank.isdigit()]
    kinds = [kind for kind in census(frames).kinds if kind in KINDS]
    return {
        "ranks": ranks,
        **{name: str(row[name]) for name in ("description", "mesh_axis", "backend")},
        "busbw": {kind: busbw_factor(kind, len(ranks)) for kind in kinds} if ranks else {},
    }


def _findings(answers: Answers) -> list[dict[str, Any]]:
    """Return the text of each finding, and the number of its card, from 0; -1 without a card."""
    said, same = ["rule", "title", "advice"], ["rule", "advice", "source"]
    shown = answers.findings.head(MAX_CARDS)[same].itertuples(index=False, name=None)
    cards = {key: card for card, key in enumerate(shown)}
    table = answers["findings"].drop_duplicates(said).set_index(said)["source"]
    return [
        {"rule": rule.name, "title": finding.title, "advice": finding.advice}
        | {"card": cards.get((rule.name, finding.advice, table[key]), -1)}
        for rule, finding in detected(answers.frames)[:MAX_FINDINGS]
        for key in [(rule.name, finding.title, finding.advice)]
    ]


def _lateness(frames: Frames) -> dict[str, str]:
    """Return a sentence on each of the stragglers with the largest skew, by rank:id of its call."""
    each = collectives(frames)
    late = each[each["straggler"] != NOBODY].nlargest(MAX_STRAGGLERS, "skew_ns")["straggler"]
    found = [lateness_at(frames, row) for row in late]
    return {f"{each.rank}:{each.id}": each.sentence() for each in found if each is not None}


def _sources(frames: Frames) -> list[dict[str, Any]]:
    """Return the rows of table `sources`, limited to the size that a recording has at most."""
    sizes = frames.sources["text"].astype(object).str.len().astype("int64").cumsum()
    kept = frames.sources[(sizes <= MAX_CHARACTERS).to_numpy()]
    return kept.astype(object).to_dict("records")


def findings_of_calls(frames: Frames) -> tuple[np.ndarray, list[list[int]]]:
    """Return the number of each call's set of findings, and these sets.

    A set is a list of positions among the first `MAX_FINDINGS` of `detected`.
    """
    found = detected(frames.whole)[:MAX_FINDINGS]
    counted = [each.rows.places_in(frames.comm.index) for _, each in found]
    # A set is identified by the XOR of its random marks, which needs no list for each call.
    marks = np.random.default_rng(0).integers(1, 1 << 62, size=len(counted))
    sums = np.zeros(len(frames.comm), dtype="int64")
    for rows, mark in zip(counted, marks, strict=True):
        sums[rows] ^= mark
    _, firsts, code = np.unique(sums, return_index=True, return_inverse=True)
    sets: list[list[int]] = [[] for _ in firsts]
    for number, rows in enumerate(counted):
        for place in np.flatnonzero(np.isin(firsts, rows)):
            sets[place].append(number)
    return code.astype("int64"), sets


def operators_around(frames: Frames) -> np.ndarray:
    """Return the operators around each call, the outermost first, separated by newlines."""
    ops, comm = frames.ops, frames.comm
    if ops.empty or comm.empty:
        return np.full(len(comm), "", dtype=object)
    row_of = pd.Series(np.arange(len(ops)), index=pd.MultiIndex.from_frame(ops[["rank", "id"]]))
    row_of = row_of[(ops["id"] >= 0).to_numpy() & ~row_of.index.duplicated()]

    def rows(rank: pd.Series, number: pd.Series) -> np.ndarray:
        return (
            row_of.reindex(pd.MultiIndex.from_arrays([rank, number])).fillna(-1).to_numpy("int64")
        )

    first = rows(comm["rank"], comm["op_id"])
    begun, starts = np.unique(first, return_inverse=True)  # one chain per operator
    parent = rows(ops["rank"], ops["parent"])
    names = ops["op"].astype(object).to_numpy()
    chains = []
    for row in begun.tolist():
        chain: list[str] = []
        while row >= 0 and len(chain) < MAX_DEPTH:
            chain.append(names[row])
            row = int(parent[row])
        chains.append("\n".join(reversed(chain)))
    return np.array(chains, dtype=object)[starts]


def unknown_of_sites(frames: Frames, sites: pd.DataFrame) -> list[str]:
    """Return sentences on the unknown parts of each call site's reason, separated by newlines."""
    reasons = sites[["op", "source_spec", "carries", "candidates"]].astype(object)
    said: dict[Any, str] = {}
    found = []
    for row in reasons.itertuples(index=False):
        key = (row.op, bool(row.source_spec), row.carries, row.candidates not in ("", "[]"))
        if key not in said:
            reason: Any = row if key[3] else row._replace(candidates="")
            said[key] = "\n".join(_unknown(frames, reason))
        found.append(said[key])
    return found


def _unknown(frames: Frames, reason: RecordedReason) -> list[str]:
    return list(what_is_unknown(frames, reason).values())
