"""Importer of execution traces of MLCommons Chakra: the files of all ranks, and what they lack.

Ranks are read from the files that commtrace wrote, and from the names of others, `trace.3.et`. In
others, collectives are numbered in their order, as in all imported traces. A node of communication
has the size of a rank's part of an all-gather, of which its group determines the payload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from commtrace.errors import EmptyTraceError
from commtrace.importers.chakra.files import ChakraTrace, GroupFile
from commtrace.importers.chakra.rows import ReadRank, read_rank
from commtrace.importers.input_files import Document
from commtrace.importers.matching import infer_members, number_by_order, with_sizes
from commtrace.importers.rank_record import Imported, ranks_of
from commtrace.units import counted

_TIMES = "times: calls have their order, but no begin, end, duration or blocked time"
_ALWAYS = ("source lines", "reasons of calls", "parameters of calls")
_OF_OTHERS = ("modules", "element types", "shapes", "waits of calls")


def read_chakra(documents: Sequence[Document]) -> Imported:
    """Import the files of all ranks, and list the missing information.

    The contents of the documents are those that `files.trace_of` returns.

    Raises:
        EmptyTraceError: there is no file of a rank.
    """
    members: dict[str, tuple[int, ...]] = {}
    of_ranks: list[tuple[Document, ChakraTrace]] = []
    for each in documents:
        if isinstance(each.content, GroupFile):
            members |= each.content.members
        else:
            of_ranks.append((each, each.content))
    if not of_ranks:
        raise EmptyTraceError(
            f"cannot import {documents[0].path}",
            found="the ranks of groups, without an execution trace",
            why="a file of groups has no calls",
            attempt="the folder that has the files of the ranks, `trace.0.et`, ...",
        )
    read = [read_rank(trace, members, each.rank_in_name) for each, trace in of_ranks]
    ranks = ranks_of([each for each, _ in of_ranks], [each.stated_rank for each in read])
    records = [each.record for each in read]
    lacks: list[str] = [*_ALWAYS]
    if not all(each.is_own for each in read):
        world_size = max(1 + max(ranks.numbers), *(record.world_size for record in records))
        for record in records:
            record.world_size = world_size
        inferred = infer_members(records, world_size)
        with_sizes(records)
        numbered, left = number_by_order(records)
        lacks += _lacks(read, inferred, numbered, left)
    return Imported(records, ranks.source, lacks)


def _lacks(read: Sequence[ReadRank], inferred: list[str], numbered: int, left: int) -> list[str]:
    calls = sum(len(each.record.comm) for each in read)
    counts = {
        "collectives that could not be matched across ranks": left,
        "collectives that were numbered by their order in the group": numbered,
        "sizes of calls": sum(call.payload_bytes < 0 for each in read for call in each.record.comm),
    }
    found = [*_OF_OTHERS]
    if not any(each.has_times for each in read):
        found.append(_TIMES)
    if inferred:
        found.append(f"the ranks of group {', '.join(inferred)}: inferred from the calls on it")
    left_out: Counter[str] = sum([each.left_out for each in read], Counter())
    found += [f"{counted(num, 'node')} of type {name}" for name, num in left_out.items()]
    return found + [f"{text}: {num} of {calls}" for text, num in counts.items() if num]
