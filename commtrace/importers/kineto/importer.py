"""Importer of torch.profiler (Kineto) traces, one file per rank.

Each file is read by itself, by `rows`; large files in processes of their own, as many at a
time as there are cores. Then the calls of the ranks are matched.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from commtrace.device_kernels import recognizer
from commtrace.importers.cycle_collection import no_cycle_collection
from commtrace.importers.input_files import PROFILER, Document, loaded, whole_ones
from commtrace.importers.kineto.issued_work import KERNEL, WAYS
from commtrace.importers.kineto.rows import Found, Profile
from commtrace.importers.matching import infer_members, number_by_order, with_sizes
from commtrace.importers.rank_record import Imported, RankRecord, ranks_of
from commtrace.importers.stream_groups import stream_groups
from commtrace.settings import settings_of
from commtrace.torch_names import NOT_KNOWN

_LARGE_BYTES = 16_000_000
"""Size of all files from which on processes are started to read them."""


def read_profiles(documents: Sequence[Document]) -> Imported:
    """Import traces rank by rank, and list the missing information."""
    read, left_out = _read_all(documents)
    return matched(read, left_out, _NO_FRAMES)


class Unlocated(NamedTuple):
    """Reasons why calls have no source lines and no modules, and waits no streams."""

    frames: str
    modules: str
    streams: str


_NO_FRAMES = Unlocated(
    "source lines (with_stack was off)",
    "modules (with_stack or with_modules was off)",
    "enable_cuda_sync_events was off",
)


def matched(read: Sequence[ReadFile], left_out: list[str], unlocated: Unlocated) -> Imported:
    """Match the calls of ranks that were read, and list the missing information."""
    ranks = ranks_of([each.document for each in read], [each.found.stated_rank for each in read])
    records = [each.record for each in read]
    world_size = max([*(record.world_size for record in records), 1 + max(ranks.numbers)])
    by_stream = stream_groups(records, world_size)
    inferred = infer_members(records, world_size)
    with_sizes(records)
    # Before the numbering by order, which gives these calls a number.
    _without_doubles(records)
    numbered, left = number_by_order(records)
    summaries = [each.found for each in read]
    found = _lacks(records, summaries, inferred, numbered, left, unlocated)
    lacks = [*left_out, *by_stream, *found]
    return Imported(records, ranks.source, lacks, _kernels_text(summaries))


class ReadFile(NamedTuple):
    """A file and its contents."""

    document: Document
    record: RankRecord
    found: Found


def _read_all(documents: Sequence[Document]) -> tuple[list[ReadFile], list[str]]:
    """Read the files in sequence, or each in a process of its own.

    Returns:
        The files that are whole, and sentences on the files left out.
    """
    num_processes = min(len(documents), os.cpu_count() or 1)
    if num_processes > 1 and sum(_size_of(each.path) for each in documents) >= _LARGE_BYTES:
        with ThreadPoolExecutor(num_processes) as threads:
            futures = [threads.submit(_read_elsewhere, document) for document in documents]
            pairs = zip(documents, futures, strict=True)
            return whole_ones((document.path, future.result) for document, future in pairs)
    return whole_ones((document.path, partial(_read, document)) for document in documents)


def _read(document: Document) -> ReadFile:
    return ReadFile(document, *read_file(document))


def _size_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _read_elsewhere(document: Document) -> ReadFile:
    """Read a file in another process; if that fails, in this process, which raises the error."""
    command = [sys.executable, "-c", _READER, str(document.path)]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if ended.returncode == 0:
        with suppress(Exception):  # a program that prints as it starts precedes the result
            return ReadFile(document, *pickle.loads(ended.stdout))
    return _read(document)


# Not a process of `multiprocessing`, which would run the user's script again.
_READER = "from commtrace.importers.kineto.importer import write_record; write_record()"


def write_record() -> None:
    """Read the file that the command line names, and write the result to standard output."""
    document = Document(Path(sys.argv[1]), PROFILER, None)
    pickle.dump(read_file(document), sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


def read_file(document: Document) -> tuple[RankRecord, Found]:
    """Read a file; its text and its events are dropped before the next is read."""
    with no_cycle_collection():
        profile = Profile.of_chrome_trace(loaded(document), recognizer(settings_of().kernels))
        # As `ranks_of` decides, which refuses files of which this is not the rank.
        return profile.record(profile.rank if profile.rank >= 0 else max(document.rank_in_name, 0))


def _kernels_text(files: Sequence[Found]) -> str:
    """Return how many kernels were joined to calls in which way."""
    ways = sum([found.matched for found in files], Counter())
    if not ways:
        return ""
    shares = ", ".join(f"{way}: {ways[way]:,}" for way in WAYS if ways[way])
    return f"{ways.total():,} communication kernels, by {shares}"


def _lacks(
    records: Sequence[RankRecord],
    files: Sequence[Found],
    inferred: list[str],
    numbered: int,
    left: int,
    unlocated: Unlocated,
) -> list[str]:
    calls = [call for record in records for call in record.comm]
    counts = {
        "calls with an unknown group": sum(not call.group for call in calls),
        "sizes of calls (for instance because record_shapes was off)": sum(
            call.payload_bytes < 0 for call in calls
        ),
        "calls with an unknown end": sum(call.complete_ns < 0 for call in calls),
        "operators of communication kernels, which are calls of their own": sum(
            found.matched[KERNEL] for found in files
        ),
        "collectives that could not be matched across ranks": left,
        "collectives that were numbered by their order in the group": numbered,
    }
    lacks = ["reasons of calls", "parameters of calls"]
    if calls and not any(call.source_file for call in calls):
        lacks.append(unlocated.frames)
    if calls and not any(found.has_modules for found in files):
        lacks.append(unlocated.modules)
    if inferred:
        lacks.append(f"the ranks of group {', '.join(inferred)}: inferred from the calls on it")
    num_waits = sum(found.num_waits for found in files)
    if num_unplaced := sum(found.num_unplaced for found in files):
        reason = f"(for instance because {unlocated.streams})"
        lacks.append(
            f"streams and kernels of waits for devices {reason}: {num_unplaced} of {num_waits}"
        )
    if num_invalid := sum(found.num_invalid for found in files):
        lacks.append(f"{num_invalid} events with invalid times, which are omitted")
    return lacks + [f"{text}: {count} of {len(calls)}" for text, count in counts.items() if count]


def _without_doubles(records: Sequence[RankRecord]) -> None:
    """Clear the numbers that several calls of a rank share, as the parts of a batch do."""
    for record in records:
        seen: dict[tuple[str, int], int] = {}
        for call in record.comm:
            seen[call.group, call.seq] = seen.get((call.group, call.seq), 0) + 1
        for place, call in enumerate(record.comm):
            if call.seq >= 0 and seen[call.group, call.seq] > 1:
                record.comm[place] = call._replace(seq=NOT_KNOWN)
