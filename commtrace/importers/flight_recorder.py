"""Importer of flight-recorder dumps, which torch's watchdog writes when a collective times out.

    {"version": "2.10", "entries": [entry, ...],
     "pg_config": {name: {"name": ..., "desc": ..., "ranks": "[0, 1]"}}}

The buffer is a ring: entries may begin at any number, and earlier ones are lost. An entry is a call
of one rank on one group. Several entries with one `collective_seq_id` are a coalesced batch, whose
last entry alone states the progress of the batch. The JSON form has no Python frames.
Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from commtrace.errors import NotATraceError
from commtrace.event import CommEvent
from commtrace.importers.documents import Document
from commtrace.importers.matching import infer_members
from commtrace.importers.names import (
    COALESCED,
    NO_COMMUNICATION,
    NOT_KNOWN,
    TRANSFERS,
    dtype_of,
    is_library,
    kind_of,
    payload_of,
    shapes_text,
    wire_of,
)
from commtrace.importers.recorded import (
    Imported,
    RankRecord,
    group_row,
    members_of,
    ranks_of,
)
from commtrace.importers.worlds import numbered, with_names, worlds_of
from commtrace.schema import MAX_RANKS
from commtrace.tracefile.reading import is_int, parse_json

Entry = Mapping[str, Any]

LACKS: tuple[str, ...] = (
    "roots, reductions, modules and operators",
    "blocked times: waits are unknown, and the duration of a call is the time from its issue until "
    "torch noticed its completion, which may be much later",
)
"""Information that no dump contains."""

_NO_FRAMES = "source lines, which only dumps in pickle format have"


def read_dumps(documents: Sequence[Document]) -> Imported:
    """Import dumps rank by rank, and list the missing information."""
    stated, worlds = [], []
    for document in documents:
        with _read(document):
            stated.append(_stated_rank(document.content))
            worlds.append(worlds_of(document.content))
    ranks = ranks_of(documents, stated)
    dumps = [
        with_names(document.content, numbers)
        for document, numbers in zip(documents, numbered(worlds), strict=True)
    ]
    records = [
        RankRecord(rank, document.path, groups=_groups(dump, document))
        for rank, document, dump in zip(ranks.numbers, documents, dumps, strict=True)
    ]
    known = [rank for r in records for row in r.groups.values() for rank in members_of(row)]
    world_size = 1 + max([*ranks.numbers, *known])
    batches = [_batches(dump, document) for dump, document in zip(dumps, documents, strict=True)]
    for record, of_rank in zip(records, batches, strict=True):
        record.world_size = world_size
        # If its ranks are not listed, a group's members show in the calls on it.
        record.comm = [
            CommEvent(rank=record.rank, group=name)
            for name in {_group_name(batch[-1]) for batch in of_rank}
        ]
    inferred = infer_members(records, world_size)
    seqs = [_seq(batch[-1]) for of_rank in batches for batch in of_rank if not _is_p2p(batch[-1])]
    first_seq = min([1, *seqs])  # torch's own backends count from 1
    for record, document, of_rank in zip(records, documents, batches, strict=True):
        with _read(document):
            record.comm = [row for batch in of_rank for row in _rows(record, batch, first_seq)]
        _number_rows(record)
        _bound(record)
    return Imported(records, ranks.source, _lacks(dumps, inferred))


def _stated_rank(dump: Mapping[str, Any]) -> int:
    """Return the rank that a dump states, or its transfers imply: `send 1->0` is group rank 1."""
    if is_int(dump.get("rank")):
        return dump["rank"]
    members = {str(name): ranks_listed(about) for name, about in _config(dump).items()}
    found = set()
    for entry in dump.get("entries") or []:
        place = _TRANSFER.fullmatch(_name(entry))
        ranks = members.get(_group_name(entry), ())
        if place is not None and int(place[1]) < len(ranks):
            found.add(ranks[int(place[1])])
    return found.pop() if len(found) == 1 else NOT_KNOWN


_TRANSFER = re.compile(r"(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})", re.ASCII)


def _config(dump: Mapping[str, Any]) -> Mapping[str, Any]:
    return dump.get("pg_config") or {}


def ranks_listed(about: Mapping[str, Any]) -> Sequence[int]:
    """Return the ranks of a group, given as a list or as its text."""
    ranks = about["ranks"]
    ranks = parse_json(ranks) if isinstance(ranks, str) else ranks
    if not isinstance(ranks, list) or not all(is_int(r) and 0 <= r < MAX_RANKS for r in ranks):
        raise ValueError(f"ranks {str(ranks)[:60]}, which are not ranks below {MAX_RANKS}")
    return ranks


@contextlib.contextmanager
def _read(document: Document) -> Iterator[None]:
    """Convert errors of the body into NotATraceError for the document."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise NotATraceError(
            f"cannot import {document.path}",
            found=f"{type(error).__name__}: {error}",
            why="its entries are not those of a flight-recorder dump of version 2",
            attempt="dump it again, or copy it again",
        ) from error


def _lacks(dumps: Sequence[Mapping[str, Any]], inferred: list[str]) -> list[str]:
    entries = [entry for dump in dumps for entry in dump.get("entries") or []]
    lacks = list(LACKS)
    if entries and not any(entry.get("frames") for entry in entries):
        lacks.append(_NO_FRAMES)
    if inferred:
        lacks.append(f"the ranks of group {', '.join(inferred)}: inferred from the calls on it")
    if not all(dump.get("entries") for dump in dumps):
        lacks.append(f"calls of ranks without entries. {_OF_GLOO}")
    elif any(str(entry["profiling_name"]).startswith("gloo:") for entry in entries):
        unlisted = sum(_num_unlisted(dump["entries"]) for dump in dumps)
        counted = f" ({unlisted} by the numbers of the operations)" if unlisted else ""
        lacks.append(f"sends and recvs{counted} and reduce-scatters. {_OF_GLOO}")
    return lacks


_OF_GLOO = "gloo enters no sends and recvs, and a reduce-scatter as the all-reduce that it runs"


def _num_unlisted(entries: Sequence[Entry]) -> int:
    """Return how many operations of a rank have no entry, as far as the ring reaches back.

    Operations of each group are numbered from 1, with an entry or not.
    """
    numbers: dict[Any, set[int]] = {}
    for entry in entries:
        if is_int(number := entry.get("op_id")) and number > 0:
            numbers.setdefault(entry.get("pg_id"), set()).add(number)
    is_complete = not entries[0]["record_id"]
    return sum(
        max(of_group) - (0 if is_complete else min(of_group) - 1) - len(of_group)
        for of_group in numbers.values()
    )


def _groups(dump: Mapping[str, Any], document: Document) -> dict[str, Any]:
    entries = dump.get("entries") or []
    with _read(document):
        backend = str(entries[0]["profiling_name"]).partition(":")[0] if entries else ""
        named = {_group_name(entry): str(entry["process_group"][1]) for entry in entries}
        groups = {name: group_row(name, text, (), backend) for name, text in named.items()}
        for name, about in _config(dump).items():
            ranks = ranks_listed(about)
            if ranks:
                groups[str(name)] = group_row(str(name), str(about["desc"]), ranks, backend)
        return groups


def _group_name(entry: Entry) -> str:
    return str(entry["process_group"][0])


def _is_p2p(entry: Entry) -> bool:
    return bool(entry["is_p2p"])


def _seq(entry: Entry) -> int:
    return int(entry["p2p_seq_id"] if _is_p2p(entry) else entry["collective_seq_id"])


def _key(entry: Entry) -> tuple[str, bool, int]:
    return _group_name(entry), _is_p2p(entry), _seq(entry)


def _batches(dump: Mapping[str, Any], document: Document) -> list[list[Entry]]:
    """Group the entries by launch: mostly one each, several if they were coalesced.

    Entries of other groups may be interleaved with those of a batch. A batch truncated by the ring
    keeps its last entry only, since its total payload is unknown.
    """
    entries: Sequence[Entry] = dump.get("entries") or []
    batches: dict[tuple[str, bool, int], list[Entry]] = {}
    with _read(document):
        for entry in entries:
            batches.setdefault(_key(entry), []).append(entry)
        first_batch = batches[_key(entries[0])] if entries and entries[0]["record_id"] else []
        if first_batch and _is_closing(first_batch) and not _is_p2p(first_batch[-1]):
            del first_batch[:-1]
    return list(batches.values())


def _name(entry: Entry) -> str:
    """Return the name without its backend: `all_reduce` of `nccl:all_reduce`."""
    return str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])


def _is_closing(batch: Sequence[Entry]) -> bool:
    """Return whether the last entry of a batch only closes it, without tensors of its own."""
    last = batch[-1]
    name = _name(last).lower()
    closes = name in COALESCED or (len(batch) > 1 and name.endswith("coalesced"))
    return closes and not last["input_sizes"] and not last["output_sizes"]


def _rows(record: RankRecord, batch: list[Entry], first_seq: int) -> Iterator[Any]:
    """Yield the calls of one batch: each transfer separately, its collectives as one call."""
    last, calls = batch[-1], batch
    if _is_closing(batch):
        calls = batch[:-1]
    collectives = []
    for entry in calls:
        kind = _kind(entry)
        if kind in TRANSFERS:
            yield _transfer(record, entry, last)
        elif kind not in NO_COMMUNICATION | COALESCED:
            collectives.append(entry)
    if collectives or (not calls and not _is_p2p(last)):
        yield _collective(record, collectives, last, first_seq)


def _kind(entry: Entry) -> str:
    return kind_of(_name(entry).split(" ")[0])


def _transfer(record: RankRecord, entry: Entry, last: Entry) -> Any:
    """Return the row of a send or recv, `send 0->1` or `recv 1<-0`; the numbers are group ranks."""
    kind = _kind(entry)
    ends = _TRANSFER.fullmatch(_name(entry))
    if ends is None:
        raise ValueError(f"a transfer {_name(entry)[:60]!r} without source and destination")
    peer = int(ends[2])
    ranks = members_of(record.groups[_group_name(entry)])
    payload, dtype = _payload(kind, [entry], len(ranks))
    return _row(record, entry, last)._replace(
        kind=kind,
        peer=ranks[peer] if peer < len(ranks) else peer if not ranks else NOT_KNOWN,
        dtype=dtype,
        payload_bytes=payload,
        wire_bytes=wire_of(kind, payload, ranks, record.rank, NOT_KNOWN),
        input_shapes=shapes_text(entry["input_sizes"]),
        output_shapes=shapes_text(entry["output_sizes"]),
    )


def _collective(record: RankRecord, calls: list[Entry], last: Entry, first_seq: int) -> Any:
    """Return the row of a collective; if a batch's parts were lost, only that it existed."""
    first = calls[0] if calls else last
    closing = _kind(last)
    kinds = {_kind(entry) for entry in calls}
    kind = closing if closing not in COALESCED else kinds.pop() if len(kinds) == 1 else ""
    ranks = members_of(record.groups[_group_name(first)])
    payload, dtype = _payload(kind, calls, len(ranks))
    return _row(record, first, last)._replace(
        kind=kind,
        seq=_seq(first) - first_seq,
        dtype=dtype,
        payload_bytes=payload,
        wire_bytes=wire_of(kind, payload, ranks, record.rank, NOT_KNOWN),
        input_shapes=shapes_text([shape for entry in calls for shape in entry["input_sizes"]]),
        output_shapes=shapes_text([shape for entry in calls for shape in entry["output_sizes"]]),
    )


def _payload(kind: str, calls: Sequence[Entry], size: int) -> tuple[int, str]:
    """Return bytes and element type of one call, described by one entry or several."""
    total = 0 if calls else NOT_KNOWN
    dtype = ""
    for entry in calls:
        types = [*entry["input_dtypes"], *entry["output_dtypes"]]
        dtype, itemsize = dtype_of(types[0]) if types else ("", NOT_KNOWN)
        payload = payload_of(
            _kind(entry) if len(calls) > 1 else kind,
            _elements(entry["input_sizes"]),
            _elements(entry["output_sizes"]),
            itemsize,
            size,
        )
        total = total + payload if min(total, payload) >= 0 else NOT_KNOWN
    return total, "" if kind == "barrier" else dtype


def _elements(sizes: Sequence[Sequence[int]]) -> int:
    return sum(prod(shape) for shape in sizes) if sizes else NOT_KNOWN


def _row(record: RankRecord, entry: Entry, last: Entry) -> Any:
    """Return the columns common to transfers and collectives; a batch ends with its last entry."""
    frames = entry.get("frames") or last.get("frames") or ()
    source = next((frame for frame in frames if not is_library(frame["filename"])), None)
    thread = str(entry.get("thread_id", ""))
    return CommEvent(
        rank=record.rank,
        id=int(entry["record_id"]),
        native_op=str(entry["profiling_name"]).split(" ")[0],
        group=_group_name(entry),
        issue_ns=int(entry["time_created_ns"]),
        complete_ns=int(last.get("time_discovered_completed_ns") or NOT_KNOWN),
        thread=int(thread) if thread.isdigit() else NOT_KNOWN,
        source_file=source["filename"] if source else "",
        source_line=int(source["line"]) if source else NOT_KNOWN,
        source_function=source["name"] if source else "",
        stack="\n".join(
            f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in reversed(frames)
        ),
    )


def _number_rows(record: RankRecord) -> None:
    """Sort calls by issue time; keep the dump's numbers if they are in that order.

    They are not if the recorder was reset: it then counts from the beginning, and older entries not
    yet overwritten have higher or equal numbers.
    """
    record.comm.sort(key=lambda row: (row.issue_ns, row.id))
    numbers = [row.id for row in record.comm]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        record.comm = [row._replace(id=place) for place, row in enumerate(record.comm)]


def _bound(record: RankRecord) -> None:
    instants = [row.issue_ns for row in record.comm] + [row.complete_ns for row in record.comm]
    known = [instant for instant in instants if instant >= 0]
    record.start_ns, record.end_ns = min(known, default=0), max(known, default=0)
