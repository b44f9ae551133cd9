"""docs/exchange.md says of each field of a profile what becomes of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.importers import import_trace
from commtrace.importers.kineto import rows as kineto_rows
from commtrace.schema import TABLES
from tests.commtrace.importers.kineto.layouts import LAYOUTS
from tests.commtrace.importers.kineto.profiles import BASE_NS, US, Profile, training, write_profiles
from tests.commtrace.importers.kineto.programs import Program
from tests.commtrace.importers.tracked import fields_of, tracked
from tests.docs.exchange import PROFILES, documented

Args = dict[str, Any]
PAGE = documented(PROFILES)
NCCL = "ncclDevKernel"
KERNEL_NAME = "ncclDevKernel_AllReduce_Max_f32_TREE_LL128(x)"


def profile() -> Profile:
    """One call of every sort: described, with shapes alone, on gloo, and around a kernel."""
    made = Profile(1, groups={"3": [1, 4]})
    made.span("ProfilerStep#7", "user_annotation", 0, 900)
    made.span("train.py(12): step", "python_function", 1, 880)
    made.span("nn.Module: Block_0", "python_function", 3, 400)
    made.span("aten::mm", "cpu_op", 10, 100)
    made.call("allreduce", "c10d::allreduce_", 20, group="3", seq=5)
    made.launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 28, (100, 50), stream=20,
                  device=2, grid=[8, 1, 1])  # fmt: skip
    made.launched("gemm", 60, (120, 60), stream=7, device=2)
    made.span("Memcpy HtoD", "gpu_memcpy", 200, 5, tid=9)
    return made


def waiting() -> Profile:
    """A stream that waits for the kernel of the call, by an event recorded behind all kernels."""
    made = profile()
    made.span("cudaEventRecord", "cuda_runtime", 64, 2, correlation=501)
    made.span("cudaStreamWaitEvent", "cuda_runtime", 70, 3, correlation=502)
    about = {"device": 2, "context": 1, "stream": 9, "correlation": 502}
    event = {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 501}
    event |= {"wait_on_cuda_event_id": 4, "cuda_sync_kind": "Stream Wait Event"}
    made.span("Stream Wait Event", "cuda_sync", 71, 2, tid=9, **about, **event)
    return made


def unlinked() -> Profile:
    """A kernel that nothing joins to its call."""
    made = profile()
    for each in made.events:
        if each["name"].startswith(NCCL):
            del each["args"]["correlation"], each["args"]["External id"]
    return made


def undescribed() -> Profile:
    made = Profile(1, groups={"3": [1, 4]})
    made.undescribed("all_reduce", "c10d::allreduce_", 20, shapes=[[8, 2]], kernel=(100, 50))
    return made


def on_gloo() -> Profile:
    made = Profile(1, groups={"3": [1, 4]})
    flags = ["", "", "1", "0", "True", "-1"]
    shapes = {"Input Dims": [[[8]], [], []], "Input type": ["TensorList", "", ""]}
    worker = {"Input Dims": [[8]], "Input type": ["float"]}
    made.span("c10d::broadcast_", "cpu_op", 10, 9, **shapes, **{"Concrete Inputs": flags})
    made.span("gloo:broadcast", "user_annotation", 12, 40, tid=9, **worker)
    return made


@dataclass(frozen=True, slots=True)
class Case:
    """A field that is set to a distinctive value, and the columns that follow it."""

    field: str
    change: Callable[[Args], object]
    expected: dict[str, Any]
    made: Callable[[], Profile] = profile


def event(document: Args, name: str) -> Args:
    """The first event whose name begins so."""
    return next(each for each in document["traceEvents"] if each["name"].startswith(name))


def args(which: str, /, **fields: Any) -> Callable[[Args], object]:
    """Set arguments of an event."""
    return lambda document: event(document, which)["args"].update(fields)


def described(**fields: Any) -> Callable[[Args], object]:
    return args("record_param_comms", **fields)


def ungrouped(**fields: Any) -> Callable[[Args], object]:
    """Set arguments of the description in a trace that lists no groups."""

    def change(document: Args) -> None:
        document["distributedInfo"]["pg_config"] = []
        described(**fields)(document)

    return change


def whole(which: str, /, **fields: Any) -> Callable[[Args], object]:
    """Set fields of an event."""
    return lambda document: event(document, which).update(fields)


def about(**fields: Any) -> Callable[[Args], object]:
    return lambda document: document.update(fields)


def distributed(**fields: Any) -> Callable[[Args], object]:
    return lambda document: document["distributedInfo"].update(fields)


def config(**fields: Any) -> Callable[[Args], object]:
    return lambda document: document["distributedInfo"]["pg_config"][0].update(fields)


def unlisted(document: Args) -> None:
    """State the size of the group, and nowhere its ranks."""
    config(ranks="", pg_size=9, pg_desc="")(document)
    described(**{"Process Group Ranks": "", "Group size": None})(document)
    del event(document, "record_param_comms")["args"]["Process Group Description"]


def unchanged(document: Args) -> None:
    """Leave the values that the trace was made with."""


def without(name: str, field: str) -> Callable[[Args], object]:
    """Remove an argument of all events of a name."""

    def change(document: Args) -> None:
        for each in document["traceEvents"]:
            if each["name"].startswith(name):
                each["args"].pop(field, None)

    return change


def linked(spelling: str) -> Callable[[Args], object]:
    """Give the kernel and its call an id that both have."""

    def change(document: Args) -> None:
        event(document, NCCL)["args"][spelling] = 77
        event(document, "record_param_comms")["args"]["External id"] = 77

    return change


def on_stream_of_thread(document: Args) -> None:
    """Let the thread of a kernel be its stream, as in early layouts."""
    del event(document, NCCL)["args"]["stream"]
    event(document, NCCL)["tid"] = "stream 77"


ABBREVIATED = {"Process Group Ranks": "[5, ...]", "Group size": 3, "Global rank start": 5,
               "Global rank stride": 4}  # fmt: skip
AT, LONG = BASE_NS + 100 * US, 50 * US

CASES = [
    Case("Collective name", described(**{"Collective name": "_allgather_base"}),
         {"kind": "all_gather"}),
    Case("name", whole("c10d::allreduce_", name="c10d::_allgather_base_"),
         {"native_op": "c10d::_allgather_base_"}),
    Case("name", whole(NCCL, name=KERNEL_NAME),
         {"reduce_op": "max", "algorithm": "TREE", "protocol": "LL128",
          "kernels.name": KERNEL_NAME}),
    Case("Process Group Name", described(**{"Process Group Name": "9"}), {"group": "9"}),
    Case("Seq", described(Seq=78), {"seq": 77}),
    Case("Rank", described(**{"Collective name": "broadcast", "Rank": 1}), {"root": 4}),
    Case("Concrete Inputs", unchanged, {"root": 4, "is_async": True}, on_gloo),
    Case("Concrete Inputs", whole("c10d::broadcast_", name="c10d::send"), {"peer": 4}, on_gloo),
    Case("Dst Rank", described(**{"Collective name": "send", "Dst Rank": 4}), {"peer": 4}),
    Case("Src Rank", described(**{"Collective name": "recv", "Src Rank": 4}), {"peer": 4}),
    Case("dtype", described(dtype="Double"),
         {"dtype": "float64", "payload_bytes": 8192, "wire_bytes": 8192}),
    Case("In msg nelems", described(**{"In msg nelems": 77}),
         {"payload_bytes": 154, "wire_bytes": 154, "input_shapes": "[77]"}),
    Case("Out msg nelems",
         described(**{"Collective name": "_allgather_base", "Out msg nelems": 77}),
         {"payload_bytes": 154, "output_shapes": "[77]"}),
    Case("Input Dims", args("nccl:", **{"Input Dims": [[7, 3]]}),
         {"payload_bytes": 84, "wire_bytes": 84, "input_shapes": "[7,3]",
          "output_shapes": "[7,3]"}, undescribed),
    Case("Input type", args("nccl:", **{"Input type": ["double"]}),
         {"dtype": "float64", "payload_bytes": 128, "wire_bytes": 128}, undescribed),
    Case("Message size [bytes]", args("nccl:", **{"Message size [bytes]": 64}),
         {"payload_bytes": 64, "wire_bytes": 64, "dtype": ""}, undescribed),
    Case("In split size",
         described(**{"Collective name": "all_to_allv", "In split size": "[3, 1]"}),
         {"input_splits": "1536,512"}),
    Case("Out split size",
         described(**{"Collective name": "all_to_allv", "Out split size": "[1, 3]"}),
         {"output_splits": "512,1536"}),
    Case("Is asynchronized op", described(**{"Is asynchronized op": True}), {"is_async": True}),
    Case("device", args(NCCL, device=6), {"device": "cuda:6", "kernels.device": "cuda:6"}),
    Case("stream", args(NCCL, stream=77), {"stream": 77, "kernels.stream": 77}),
    Case("tid", on_stream_of_thread, {"stream": 77, "kernels.stream": 77}),
    Case("tid", whole("c10d::allreduce_", tid=99), {"thread": 99}),
    Case("grid", args(NCCL, grid=[77, 1, 1]), {"channels": 77}),
    Case("ts", unchanged,
         {"issue_ns": AT, "complete_ns": AT + LONG, "call_ns": 20 * US, "blocked_ns": 20 * US,
          "kernels.start_ns": AT, "kernels.launch_ns": BASE_NS + 28 * US, "kernels.call_id": 0,
          "ranks.start_ns": BASE_NS, "ranks.end_ns": BASE_NS + 900 * US,
          "steps.start_ns": BASE_NS, "steps.end_ns": BASE_NS + 900 * US}),
    Case("ts", whole(NCCL, ts=90),
         {"issue_ns": AT - 10 * US, "complete_ns": AT + 40 * US, "call_ns": 30 * US,
          "blocked_ns": 30 * US, "kernels.start_ns": AT - 10 * US}),
    Case("ts", whole("cudaLaunchKernel", ts=27), {"kernels.launch_ns": BASE_NS + 27 * US}),
    Case("ts", whole("ProfilerStep", ts=-50, dur=950),
         {"steps.start_ns": BASE_NS - 50 * US, "ranks.start_ns": BASE_NS - 50 * US}),
    Case("dur", whole(NCCL, dur=15),
         {"complete_ns": AT + 15 * US, "device_ns": 15 * US, "kernels.duration_ns": 15 * US,
          "blocked_ns": 15 * US, "call_ns": 15 * US}),
    Case("dur", whole("ProfilerStep", dur=990),
         {"steps.end_ns": BASE_NS + 990 * US, "ranks.end_ns": BASE_NS + 990 * US}),
    Case("ts", whole("c10d::broadcast_", ts=11), {"issue_ns": BASE_NS + 11 * US}, on_gloo),
    Case("dur", whole("c10d::broadcast_", dur=8), {"call_ns": 8 * US}, on_gloo),
    Case("dur", whole("gloo:", dur=60), {"complete_ns": BASE_NS + 72 * US}, on_gloo),
    Case("name", whole("aten::mm", name="aten::bmm"),
         {"op": "aten.bmm", "op_id": 0, "ops.op": "aten.bmm", "kernels.op": "aten.bmm",
          "kernels.op_id": 0}),
    Case("tid", whole("cudaLaunchKernel", tid=99), {"kernels.thread": 99}),
    Case("name", whole("cudaStreamWaitEvent", name="cudaEventRecord"),
         {"syncs.kind": "event_record"}, waiting),
    Case("ts", whole("cudaStreamWaitEvent", ts=77), {"syncs.at_ns": BASE_NS + 77 * US}, waiting),
    Case("dur", whole("cudaStreamWaitEvent", dur=77), {"syncs.duration_ns": 77 * US}, waiting),
    Case("tid", whole("cudaStreamWaitEvent", tid=77), {"syncs.thread": 77}, waiting),
    Case("device", args("Stream Wait Event", device=6), {"syncs.device": "cuda:6"}, waiting),
    Case("stream", args("Stream Wait Event", stream=77), {"syncs.stream": 77}, waiting),
    Case("wait_on_stream", args("Stream Wait Event", wait_on_stream=7), {"syncs.kernel_id": 1},
         waiting),
    Case("wait_on_cuda_event_record_corr_id",
         args("Stream Wait Event", wait_on_cuda_event_record_corr_id=503),
         {"syncs.kernel_id": -1}, waiting),
    Case("name", whole("nn.Module", name="nn.Module: Linear_8"),
         {"module": "Linear_8", "module_class": "Linear", "phase": "forward"}),
    Case("name", whole("nn.Module", cat="user_annotation", name="Optimizer.step#SGD.step"),
         {"phase": "optimizer"}),
    Case("name", whole("train.py", name="other.py(77): run"),
         {"source_file": "other.py", "source_line": 77, "source_function": "run"}),
    Case("name", whole("ProfilerStep", name="ProfilerStep#77"), {"step": 77, "steps.step": 77}),
    Case("cat", whole(NCCL, cat="gpu_memcpy"), {"kernels.category": "memcpy", "complete_ns": -1}),
    Case("ph", whole(NCCL, ph="i"), {"complete_ns": -1}),
    Case("correlation", without(NCCL, "correlation"), {"complete_ns": -1, "kernels.launch_ns": -1}),
    Case("External id", linked("External id"), {"complete_ns": AT + LONG}, unlinked),
    Case("external id", linked("external id"), {"complete_ns": AT + LONG}, unlinked),
    Case("args", whole(NCCL, args={}), {"complete_ns": -1}),
    Case("pg_config", distributed(pg_config=[]), {"groups.description": "mesh_tp"}),
    Case("pg_name", config(pg_name="8"), {"groups.name": "8"}),
    Case("pg_desc", config(pg_desc="mesh_dp"), {"groups.description": "mesh_dp"}),
    Case("ranks", config(ranks=[1, 7]), {"groups.ranks": "1,7", "groups.size": 2}),
    Case("pg_size", unlisted, {"groups.size": 9, "groups.ranks": ""}),
    Case("backend_config", config(backend_config="cuda:ucc"), {"groups.backend": "ucc"}),
    Case("backend", distributed(backend="ucc"), {"groups.backend": "ucc"}),
    Case("Process Group Description", ungrouped(**{"Process Group Description": "mesh_dp"}),
         {"groups.description": "mesh_dp"}),
    Case("Process Group Ranks", ungrouped(**{"Process Group Ranks": "[1, 7]"}),
         {"groups.ranks": "1,7", "groups.name": "3"}),
    Case("Group size", ungrouped(**ABBREVIATED), {"groups.size": 3, "groups.ranks": "5,9,13"}),
    Case("Global rank start", ungrouped(**ABBREVIATED), {"groups.ranks": "5,9,13"}),
    Case("Global rank stride", ungrouped(**ABBREVIATED), {"groups.ranks": "5,9,13"}),
    Case("rank", distributed(rank=4), {"ranks.rank": 4, "rank": 4}),
    Case("world_size", distributed(world_size=77), {"run.world_size": 77}),
    Case("host_name", about(host_name="gpu77"), {"ranks.host": "gpu77"}),
    Case("pid", whole("aten::mm", pid=7), {"ranks.pid": 7}),
    Case("deviceProperties", about(deviceProperties=[]), {"ranks.device": "cpu"}, on_gloo),
    Case("deviceProperties", unchanged, {"ranks.device": "cuda"}, on_gloo),
    Case("baseTimeNanoseconds", about(baseTimeNanoseconds=BASE_NS + 77),
         {"issue_ns": AT + 77, "complete_ns": AT + LONG + 77}),
    Case("traceEvents", about(traceEvents=[]), {"comm.rows": 0}),
    Case("distributedInfo", about(distributedInfo={}), {"run.world_size": 2}),
]  # fmt: skip


def values(folder: Path, document: Args) -> dict[str, Any]:
    """The columns of the first call, of the first rows of other tables, and of the last wait."""
    (folder / "rank1.json").write_text(json.dumps(document))
    frames = load(import_trace([folder / "rank1.json"]))
    found: dict[str, Any] = {"run.world_size": frames.run["world_size"]}
    found["comm.rows"] = len(frames.comm)
    for table in ("ops", "groups", "ranks", "steps", "kernels", "syncs"):
        frame = getattr(frames, table)
        if table == "ranks":
            frame = frame[frame["host"] != ""] if (frame["host"] != "").any() else frame
        rows = frame.to_dict("records")[-1 if table == "syncs" else 0 :]
        found |= {f"{table}.{name}": value for name, value in (rows or [{}])[0].items()}
    if len(frames.comm):
        found |= frames.comm.iloc[0].to_dict()
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.field}-{','.join(case.expected)}")
def test_a_column_follows_its_field(case: Case, tmp_path: Path) -> None:
    document = copy.deepcopy(case.made().document())
    before = values(tmp_path, document)
    case.change(document)
    found = values(tmp_path, document)
    assert {name: found[name] for name in case.expected} == case.expected
    follows = any(found[name] != before.get(name) for name in case.expected)
    assert follows == (case.change is not unchanged)


def test_every_documented_column_is_tested_by_a_field_that_the_page_names() -> None:
    tested = {(name, case.field) for case in CASES for name in case.expected}
    for column, code in PAGE.columns.items():
        name = f"{column}.op" if column == "ops" else column
        assert any((name, field) in tested for field in code), column


def test_every_column_that_an_import_fills_is_documented(tmp_path: Path) -> None:
    filled = set()
    for made in (profile, undescribed, on_gloo, waiting):
        filled |= {
            name
            for name, value in values(tmp_path, made().document()).items()
            if value not in ("", -1)
            and value == value
            and name not in ("run.world_size", "comm.rows")
        }
    known = {"rank", "id", "clock_offset_ns"}
    said = set(PAGE.columns) | {"ops.op"}
    missing = {
        name for name in filled - said
        if name.split(".")[-1] not in known and not name.startswith(("ops.", "ranks."))
    }  # fmt: skip
    assert not missing


def test_every_documented_field_is_tested_and_every_tested_one_documented() -> None:
    assert {case.field for case in CASES} == {name for name, used in PAGE.fields.items() if used}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Traces of all layouts, and of all cases."""
    found = []
    for name, layout in LAYOUTS.items():
        program = Program(1, layout)
        found.append(program.write(tmp_path_factory.mktemp(name.replace(" ", "")[:6])))
    found.append(write_profiles(tmp_path_factory.mktemp("training"), training()))
    for case in CASES:
        document = copy.deepcopy(case.made().document())
        case.change(document)
        found.append(tmp_path_factory.mktemp("case"))
        (found[-1] / "rank1.json").write_text(json.dumps(document))
    return found


def test_exactly_the_fields_are_read_that_the_page_does_not_call_ignored(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = {"traceEvents"}  # found in the text

    class Events(kineto_rows.Events):
        def __iter__(self) -> Iterator[Args]:
            yield from (tracked(each, read) for each in super().__iter__())
            self.about = tracked(self.about, read)

    monkeypatch.setattr(kineto_rows, "Events", Events)
    for folder in folders:
        import_trace([folder])
    assert read == {name for name, used in PAGE.fields.items() if used}


def test_the_page_names_every_field_of_the_traces(folders: list[Path]) -> None:
    for folder in folders:
        for path in folder.iterdir():
            document = json.loads(path.read_text())
            complete = [each for each in document.pop("traceEvents") if each["ph"] == "X"]
            document.pop("deviceProperties")
            assert fields_of([document, complete]) <= set(PAGE.fields)


def test_tables_of_the_page_are_those_of_the_schema() -> None:
    for column in PAGE.columns:
        table, _, name = column.rpartition(".")
        known = [each.name for each in TABLES[table or "comm"]]
        assert column == "ops" or name in known, column
