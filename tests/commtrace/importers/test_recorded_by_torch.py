"""Files recorded by torch on gloo and imported: profiler traces, flight recorder dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commtrace.analyze import CATALOG, Frames, load
from commtrace.importers import import_trace
from dtensor_core.testing import run_processes
from dtensor_core.testing.pool import _pool
from tests.commtrace.importers.flight_recorder.dumps import Dump
from tests.commtrace.importers.tracked import fields_of
from tests.docs.exchange import DUMPS, PROFILES, documented

NUM_RANKS = 2


def record(folder: Path) -> None:
    """Run a rank's calls under torch's profiler and flight recorder, and write their files."""
    from torch._C._distributed_c10d import (  # pyright: ignore[reportAttributeAccessIssue]
        _dump_fr_trace,
        _dump_fr_trace_json,
    )
    from torch.profiler import ProfilerActivity, profile

    rank = dist.get_rank()
    values, gathered = torch.ones(256), torch.empty(NUM_RANKS * 256)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its newer name
    activities = [ProfilerActivity.CPU]
    dist.barrier()
    with profile(activities=activities, record_shapes=True, with_stack=True) as profiled:
        dist.all_reduce(values)
        dist.all_reduce(values, async_op=True).wait()
        gather(gathered, values)
        dist.broadcast(values, src=1)
        dist.reduce_scatter(values, [values] * NUM_RANKS)
        if rank == 0:
            dist.send(values, 1)
        else:
            dist.recv(values, 0)
        dist.barrier()
    profiled.export_chrome_trace(str(folder / f"trace{rank}.json"))
    (folder / f"pickled_rank{rank}").write_bytes(_dump_fr_trace())
    (folder / f"text_rank{rank}").write_bytes(_dump_fr_trace_json())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    _pool.kill()  # processes reused from other tests have older entries in their flight recorders
    run_processes(record, NUM_RANKS, folder)
    return folder


def imported(folder: Path, pattern: str) -> Frames:
    return load(import_trace(sorted(folder.glob(pattern))))


EXPECTED = [
    *("all_reduce", "all_reduce", "all_gather", "broadcast", "reduce_scatter", "send", "barrier"),
]


def test_a_profile_tells_each_call_with_size_root_peer_and_line(recorded: Path) -> None:
    frames = imported(recorded, "trace*")
    for rank in range(NUM_RANKS):
        calls = frames.comm[frames.comm["rank"] == rank]
        kinds = [*EXPECTED[:5], "recv" if rank else "send", "barrier"]
        assert calls["kind"].tolist() == kinds
        assert calls["payload_bytes"].tolist() == [1024, 1024, 2048, 1024, 2048, 1024, 0]
        assert calls["root"].tolist() == [-1, -1, -1, 1, -1, -1, -1]
        assert calls["peer"].tolist() == [-1, -1, -1, -1, -1, 1 - rank, -1]
        assert calls["seq"].tolist() == [0, 1, 2, 3, 4, -1, 5]
        assert calls["is_async"].tolist()[:4] == [False, True, False, False]
        assert set(calls["dtype"].iloc[:6]) == {"float32"}
        assert set(calls["source_function"]) == {"record"}
    assert frames.groups["ranks"].tolist() == ["0,1"]
    assert frames.run["clock"] == "one clock"
    assert not CATALOG["consistency"].function(frames)["is_fault"].any()


def test_a_profile_tells_how_long_calls_on_gloo_took(recorded: Path) -> None:
    comm = imported(recorded, "trace*").comm
    sync = comm[~comm["is_async"]]
    assert (comm["complete_ns"] >= comm["issue_ns"]).all()
    assert (sync["blocked_ns"] == sync["complete_ns"] - sync["issue_ns"]).all()
    # No rank completes a collective before the last one has arrived.
    joined = comm[comm["kind"].isin(["all_reduce", "all_gather", "barrier"])].groupby("seq")
    assert (joined["complete_ns"].min() >= joined["issue_ns"].max()).all()


def test_dumps_tell_the_collectives_in_both_forms(recorded: Path) -> None:
    pickled, text = imported(recorded, "pickled_*"), imported(recorded, "text_*")
    of_rank = pickled.comm[pickled.comm["rank"] == 0]
    # gloo's flight recorder lacks transfers, and gloo reduces and scatters by an all-reduce per
    # part
    kinds = [*EXPECTED[:4], "all_reduce", "all_reduce", "barrier"]
    assert of_rank["kind"].tolist()[-7:] == kinds
    assert of_rank["payload_bytes"].tolist()[-7:] == [1024, 1024, 2048, 1024, 1024, 1024, 0]
    assert set(of_rank["source_function"]) >= {"record"}
    assert text.comm["payload_bytes"].tolist() == pickled.comm["payload_bytes"].tolist()
    assert not CATALOG["consistency"].function(pickled)["is_fault"].any()


def test_made_up_dumps_have_the_fields_of_real_ones(recorded: Path) -> None:
    """The tests of injected faults rely on this."""
    entry: dict[str, Any] = json.loads((recorded / "text_rank0").read_text())["entries"][0]
    made_up = Dump(0).call("all_reduce").entries[0]
    assert set(entry) == set(made_up) - {"frames"}
    assert {key: type(value) for key, value in entry.items() if key in ("state", "is_p2p")} == {
        "state": str,
        "is_p2p": bool,
    }


def test_the_page_names_every_field_of_a_profile(recorded: Path) -> None:
    document = json.loads((recorded / "trace0.json").read_text())
    complete = [each for each in document.pop("traceEvents") if each["ph"] == "X"]
    assert fields_of([document, complete]) <= set(documented(PROFILES).fields)


def test_the_page_names_every_field_of_a_dump(recorded: Path) -> None:
    document = json.loads((recorded / "text_rank0").read_text())
    # These have groups, and their numbers, for names.
    inner = [list(document.pop(name).values()) for name in ("pg_config", "pg_status")]
    assert fields_of([document, *inner]) <= set(documented(DUMPS).fields)
