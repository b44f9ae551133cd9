"""Exporter for Perfetto (ui.perfetto.dev) and chrome://tracing, in the Trace Event Format.

Each rank is a process. The viewer drops slices of a track that do not nest, so overlapping calls
are placed on separate tracks:

    steps                  the marked steps
    thread 7               phase, modules (from the first to the last of their operators), operators
    communication, 2, ...  each call from issue to completion; in it, its wait, and for whom
    stream 7, ...          kernels and copies of each stream of a device
    bytes in flight        payload of the calls under way

Arrows connect the calls of a collective, in order of arrival, each send with its recv, and each
call with its kernels. Times are µs since the start of the run. Events are streamed, so that memory
stays bounded for millions of calls.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals, end_ns
from commtrace.analyze.run.analysis import addable
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import SEND, is_transfer, numbers, partners
from commtrace.atomic_write import atomic_write
from commtrace.exporters.nesting import Slice, host_slices
from commtrace.exporters.perfetto_kernels import (
    KernelTracks,
    kernel_events,
    kernel_tracks,
    track_names,
)
from commtrace.exporters.trace_events import arrow, dumped, meta, rest, slice_event, track, us
from commtrace.exporters.trace_events import lanes as lanes_of

STEPS, HOST, COMMUNICATION = 1, 1000, 10_000_000
"""First track number of each sort; a rank's threads and lanes follow."""

_FLOW = "matched"


def write_perfetto(frames: Frames, path: Path) -> None:
    """Write the trace to `path`, compressed if its name ends in `.gz`."""
    with atomic_write(path) as unfinished, _opened(unfinished) as stream:
        stream.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        first = True
        for event in events(frames):
            stream.write(event if first else ",\n" + event)
            first = False
        about = {"baseTimeNanoseconds": frames.start_ns, "exporter": "commtrace"}
        about["run"] = dict(frames.run)
        stream.write(f'\n],"otherData":{dumped(about)}}}\n')


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=1)
    return path.open("w", encoding="utf-8")


def events(frames: Frames) -> Iterator[str]:
    """Yield every event as the text of a JSON object."""
    calls = _calls(frames)
    lanes = lanes_of(*(calls[name].to_numpy() for name in ("rank", "start", "end")))
    kernels = kernel_tracks(frames)
    yield from _names(frames, calls, lanes, kernels)
    yield from _steps(frames)
    yield from _host(frames)
    yield from _communication(frames, calls, lanes)
    yield from kernel_events(frames, kernels, calls, COMMUNICATION + lanes)
    yield from _in_flight(calls)


def _calls(frames: Frames) -> pd.DataFrame:
    """Return the calls with a known issue, by rank.

    Columns: `row rank start end arrival wait last payload is_open`. A call of unknown end lasts as
    long as it is known to have lasted; a call that never returned lasts until the end of the
    recording.
    """
    comm, base = frames.comm, frames.start_ns
    arrived = arrivals(frames)
    ends = frames.ranks.set_index("rank")["end_ns"]
    is_open = (comm["complete_ns"] < 0) & (comm["call_ns"] < 0) & (comm["blocked_ns"] < 0)
    last_seen = comm["rank"].map(ends).fillna(-1).astype("int64").clip(lower=comm["issue_ns"])
    table = pd.DataFrame(
        {
            "row": np.arange(len(comm)),
            "rank": comm["rank"].to_numpy(),
            "start": (comm["issue_ns"] - base).to_numpy(),
            "end": (end_ns(comm).mask(is_open, last_seen) - base).to_numpy(),
            "arrival": (arrived["arrival_ns"] - base).to_numpy(),
            "wait": arrived["wait_ns"].to_numpy(),
            "last": arrived["last_rank"].to_numpy(),
            "payload": comm["payload_bytes"].to_numpy(),
            "is_open": is_open.to_numpy(),
        }
    )[(comm["issue_ns"] >= 0).to_numpy()]
    return table.sort_values(["rank", "start", "end"], kind="stable").reset_index(drop=True)


def _names(
    frames: Frames, calls: pd.DataFrame, lanes: np.ndarray, kernels: KernelTracks
) -> Iterator[str]:
    hosts = dict(zip(frames.ranks["rank"], frames.ranks["host"].astype(object), strict=True))
    in_use = pd.DataFrame({"rank": calls["rank"], "lane": lanes}).drop_duplicates()
    tables = (calls, frames.ops, frames.steps, kernels.tracks)
    ranks = set(hosts).union(*(table["rank"] for table in tables))
    num_lanes = in_use.groupby("rank")["lane"].max()
    for rank in sorted(int(rank) for rank in ranks):
        host = hosts.get(rank, "")
        yield meta("process_name", rank, 0, name=f"rank {rank}" + (f" on {host}" if host else ""))
        yield meta("process_sort_index", rank, 0, sort_index=rank)
        yield from track(rank, STEPS, "steps")
        for place, thread in enumerate(_threads(frames, rank)):
            yield from track(rank, HOST + place, f"thread {thread}")
        for lane in range(int(num_lanes.get(rank, -1)) + 1):
            name = "communication" if not lane else f"communication {lane + 1}"
            yield from track(rank, COMMUNICATION + lane, name)
        yield from track_names(kernels, rank)


def _threads(frames: Frames, rank: int) -> list[int]:
    return sorted(frames.ops.loc[frames.ops["rank"] == rank, "thread"].unique().tolist())


def _steps(frames: Frames) -> Iterator[str]:
    base = frames.start_ns
    reached: dict[int, int] = {}
    ordered = frames.timed_steps.sort_values(["rank", "start_ns", "step"])
    for rank, step, begin, finish in ordered.itertuples(index=False, name=None):
        # Clipped, since the viewer drops slices that overlap without nesting.
        start = max(begin - base, reached.get(rank, 0))
        end = max(finish - base, start)
        reached[rank] = end
        yield slice_event(rank, STEPS, start, end, rest(f"step {step}", "step", step=int(step)))


def _host(frames: Frames) -> Iterator[str]:
    """Yield the phases, modules and operators of each thread."""
    rests: dict[Any, str] = {}
    ops = frames.ops[frames.ops["start_ns"] >= 0]
    for rank in sorted(ops["rank"].unique().tolist()):
        of_rank = ops[ops["rank"] == rank]
        for place, thread in enumerate(_threads(frames, rank)):
            for each in host_slices(of_rank[of_rank["thread"] == thread], frames.start_ns):
                # Slices differ in little but their times, so the text of the rest is encoded once.
                rest = rests.get(each.key)
                if rest is None:
                    rest = rests[each.key] = _rest_of_host(each)
                yield slice_event(rank, HOST + place, each.start, each.end, rest)


def _rest_of_host(each: Slice) -> str:
    args = {name: value for name, value in each.args if value not in ("", -1)}
    return rest(each.name, each.category, **args)


_CALL_COLUMNS = (
    "native_op", "group", "reduce_op", "root", "peer", "dtype", "input_shapes", "output_shapes",
    "payload_bytes", "wire_bytes", "is_async", "step", "phase", "region", "module", "module_class",
    "op", "source_file", "source_line", "source_function", "reason", "argument", "source_spec",
    "target_spec", "carries", "parameters",
)  # fmt: skip
"""Columns of table `comm` in a call's slice; values that differ from call to call are appended."""


def _slice_texts(frames: Frames) -> tuple[np.ndarray, list[str]]:
    """Return the number of each call's text, and the distinct texts: name, category, arguments."""
    comm = frames.comm
    axes = frames.groups.set_index("name")["mesh_axis"].astype(object).to_dict()
    columns = ["kind", *_CALL_COLUMNS]
    codes = np.zeros(len(comm), dtype=np.int64)
    for name in columns:  # refactorized each time, so that codes stay below the number of rows
        values = comm[name]
        own = (
            values.cat.codes.to_numpy().astype(np.int64)
            if isinstance(values.dtype, pd.CategoricalDtype)
            else pd.factorize(values)[0]
        )
        codes = pd.factorize(codes * (int(own.max(initial=0)) + 1) + own)[0]
    firsts = np.unique(codes, return_index=True)[1] if len(codes) else []
    texts = []
    for values in comm.iloc[firsts][columns].itertuples(index=False, name=None):
        row = dict(zip(columns, values, strict=True))
        kind, axis = row.pop("kind"), axes.get(row["group"], "")
        args = {"mesh_axis": axis} if axis else {}
        args |= {name: _plain(value) for name, value in row.items() if value not in ("", -1)}
        head = rest(f"{kind} {axis}" if axis else str(kind), str(kind), **args)
        texts.append(head[:-1] + ("," if args else ""))
    return codes, texts


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _communication(frames: Frames, calls: pd.DataFrame, lanes: np.ndarray) -> Iterator[str]:
    numbers, slice_texts = _slice_texts(frames)
    ids = frames.comm["id"].to_numpy()[calls["row"]].tolist()
    seqs = frames.comm["seq"].to_numpy()[calls["row"]].tolist()
    blocked = frames.comm["blocked_ns"].to_numpy()[calls["row"]].tolist()
    columns = [
        calls[name].tolist()
        for name in ("rank", "start", "end", "arrival", "wait", "last", "is_open")
    ]
    of_call = numbers[calls["row"]].tolist()
    for rank, start, end, arrival, wait, last, is_open, lane, number, id_, seq, held in zip(
        *columns, lanes.tolist(), of_call, ids, seqs, blocked, strict=True
    ):
        tid = COMMUNICATION + lane
        more = f'"id":{id_},"seq":{seq}' + (',"completed":false' if is_open else "")
        if held >= 0:
            more += f',"blocked_ns":{held}'
        if wait >= 0:
            more += f',"wait_ns":{wait},"last_rank":{last}'
        yield slice_event(rank, tid, start, end, f"{slice_texts[number]}{more}}}")
        until = min(arrival, end)
        if wait > 0 and until > start:
            waited = f'"name":"wait for rank {last}","cat":"wait","args":{{"wait_ns":{wait}}}'
            yield slice_event(rank, tid, start, until, waited)
    yield from _arrows(frames, calls, lanes)


def _arrows(frames: Frames, calls: pd.DataFrame, lanes: np.ndarray) -> Iterator[str]:
    """Yield flows: `s` at the first call of a collective, `f` at the last, `t` in between."""
    rows = calls["row"].to_numpy()
    table = pd.DataFrame(
        {
            "group": frames.comm["group"].cat.codes.to_numpy()[rows],
            "number": numbers(frames).to_numpy()[rows],
            "rank": calls["rank"],
            "start": calls["start"],
            "end": calls["end"],
            "lane": lanes,
        }
    )
    collective = table[table["number"] >= 0]
    collective = collective.sort_values(["group", "number", "start", "rank"], kind="stable")
    key = collective.groupby(["group", "number"], sort=False)
    flow, place, size = key.ngroup(), key.cumcount(), key["rank"].transform("size")
    kinds = np.select([size < 2, place == 0, place == size - 1], ["", "s", "f"], "t")
    for kind, number, rank, start, lane in zip(
        kinds.tolist(),
        flow.tolist(),
        *(collective[name].tolist() for name in ("rank", "start", "lane")),
        strict=True,
    ):
        if kind:
            yield arrow(kind, _FLOW, number, rank, COMMUNICATION + lane, start)
    yield from _transfers(frames, table.assign(row=rows), int(flow.max()) + 1 if len(flow) else 0)


def _transfers(frames: Frames, table: pd.DataFrame, number: int) -> Iterator[str]:
    """Yield an arrow from each send to its recv, unless clocks place it after the recv's end."""
    if not is_transfer(frames).any():
        return
    # By their places in the table, which is not all of the run if it is an excerpt.
    partner = frames.comm.index.get_indexer(pd.Index(partners(frames)))
    by_row = table.set_index("row")[["rank", "start", "end", "lane"]]
    kinds = frames.comm["kind"].astype(object).to_numpy()
    sends = [row for row in by_row.index if kinds[row] == SEND and partner[row] in by_row.index]
    for send in sends:
        rank, start, _, lane = by_row.loc[send].tolist()
        other, begin, end, its_lane = by_row.loc[partner[send]].tolist()
        at = max(start, begin)
        if at <= end:
            yield arrow("s", _FLOW, number, rank, COMMUNICATION + lane, start)
            yield arrow("f", _FLOW, number, other, COMMUNICATION + its_lane, at)
            number += 1


def _in_flight(calls: pd.DataFrame) -> Iterator[str]:
    """Yield the payload in flight on each rank, whenever it changes."""
    known = calls[(calls["payload"] > 0) & (calls["end"] > calls["start"])]
    for rank, of_rank in known.groupby("rank", sort=True):
        payload = addable(of_rank["payload"]).to_numpy()
        at = np.concatenate([of_rank["start"].to_numpy(), of_rank["end"].to_numpy()])
        instants, which = np.unique(at, return_inverse=True)
        change = np.zeros(len(instants), dtype=payload.dtype)
        np.add.at(change, which, np.concatenate([payload, -payload]))
        for instant, value in _changes(instants.tolist(), np.cumsum(change).tolist()):
            yield (
                f'{{"ph":"C","pid":{rank},"name":"bytes in flight","ts":{us(instant)},'
                f'"args":{{"bytes":{value}}}}}'
            )


def _changes(instants: Iterable[int], values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    before = 0
    for instant, value in zip(instants, values, strict=True):
        if value != before:
            yield instant, value
        before = value
