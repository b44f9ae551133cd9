"""Small valid inputs of every kind, which the fuzzer corrupts."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.exporters.chakra import write_chakra
from commtrace.pytest_plugin import baseline
from commtrace.tracefile import read_trace
from commtrace.tracefile.dataset import prepare_dataset
from tests.commtrace.importers.chakra.converted import folder_of_files
from tests.commtrace.importers.device_times.exported import Export
from tests.commtrace.importers.executions import executions
from tests.commtrace.importers.flight_recorder.dumps import healthy
from tests.commtrace.importers.inspector.layouts import LAYOUTS
from tests.commtrace.importers.kineto.profiles import training, write_profiles
from tests.commtrace.importers.logs.text_logs import hang, nccl_call, nccl_init, watchdog_log
from tests.commtrace.importers.nsys_exports import Call, Process, write_export
from tests.commtrace.importers.ras.layouts import communicator, missing, snapshot
from tests.commtrace.importers.ras.layouts import rank as ras_rank
from tests.commtrace.synthetic import write_synthetic_run, write_synthetic_spools


@dataclass(frozen=True, slots=True)
class Seeds:
    """Contents of valid files; a dict holds several by name."""

    run: bytes
    dataset: dict[str, bytes]
    spools: dict[str, bytes]
    profiles: dict[str, bytes]
    dumps: dict[str, bytes]
    dumps_as_json: dict[str, bytes]
    logs: dict[str, bytes]
    snapshots: dict[str, bytes]
    texts: dict[str, bytes]
    executions: dict[str, bytes]
    chakra: dict[str, bytes]
    exports: dict[str, bytes]
    baseline: bytes


@lru_cache(maxsize=1)
def seeds() -> Seeds:
    """All valid inputs, created once per process."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        small: dict[str, Any] = {"world_size": 2, "num_steps": 2, "num_layers": 1}
        run = write_synthetic_run(folder / "run.json", **small)
        spools = write_synthetic_spools(folder / "spools", **small)
        profiles = write_profiles(folder / "profiles", training())
        newer, older = (
            [dump.document() for dump in healthy(1, torch=torch)[:2]] for torch in ("2.13", "2.5")
        )
        baseline.write(folder / "test_x.comms.json", {"test_x": _entry(), "test_y": _entry()})
        return Seeds(
            run.read_bytes(),
            _dataset(spools, folder / "RUN.comm"),
            _files_in(spools),
            _files_in(profiles),
            {f"nccl_trace_rank_{n}": pickle.dumps(dump, 2) for n, dump in enumerate(older)},
            {f"trace_rank_{n}.json": json.dumps(dump).encode() for n, dump in enumerate(newer)},
            _logs(run, folder),
            _snapshots(),
            _texts(),
            executions(2),
            folder_of_files() | _chakra(run, folder),
            _exports(folder),
            (folder / "test_x.comms.json").read_bytes(),
        )


def _files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _logs(run: Path, folder: Path) -> dict[str, bytes]:
    """Logs of NCCL Inspector of the run's calls, in the oldest layout and the newest with times."""
    export = Export(read_trace(run))
    found = {}
    for rank, layout in enumerate((LAYOUTS[0], LAYOUTS[-1])):
        logs = export.write(folder / layout.name, layout)
        name = f"node0-pid{100 + rank}.log"
        found[name] = (logs / name).read_bytes()
    return found


def _snapshots() -> dict[str, bytes]:
    """Snapshots of NCCL RAS, in which a rank is behind and another is silent."""
    found = {}
    for number in range(2):
        ranks = [ras_rank(0, AllReduce=7 + number), ras_rank(1, AllReduce=6)]
        own = communicator(ranks, [missing(2, unresponsive=True)])
        found[f"ras-{number}.json"] = snapshot(own, second=number).encode()
    return found


def _texts() -> dict[str, bytes]:
    """Logs of a hang: of the watchdog of all ranks, and of NCCL of each."""
    calls = [[nccl_init(r, 2), *[nccl_call(r, n, 2) for n in range(4 - r)]] for r in range(2)]
    found = {f"rank{r}.log": "\n".join(lines).encode() for r, lines in enumerate(calls)}
    return {"train.log": watchdog_log(*hang(), release="2.8").encode(), **found}


def _chakra(run: Path, folder: Path) -> dict[str, bytes]:
    """Execution traces of the run's ranks, of which one takes the place of a converted file."""
    write_chakra(load(run), folder / "chakra")
    return {"workload.1.et": (folder / "chakra" / "trace.1.et").read_bytes()}


def _exports(folder: Path) -> dict[str, bytes]:
    """An export of Nsight Systems with two ranks."""
    calls = [Call(ts=0), Call(ts=500, function="AllGather")]
    processes = [Process(40 + rank, rank, calls, rank) for rank in range(2)]
    return {"report.sqlite": write_export(folder / "report.sqlite", *processes).read_bytes()}


def _dataset(spools: Path, target: Path) -> dict[str, bytes]:
    """Return the files of a dataset without its spools, and what analyses have prepared of it."""
    shutil.copytree(spools, target)
    prepare_dataset(target, workers=1)
    for path in target.glob("*.spool"):
        path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        # As the commands do, so that they find what is prepared.
        patch.setattr("commtrace.tracefile.opening.ROWS_IN_MEMORY", 0)
        run = load(target)
        for analysis in CATALOG.values():
            analysis.function(run)
    files = sorted(path for path in target.rglob("*") if path.is_file())
    return {str(path.relative_to(target)): path.read_bytes() for path in files}


def _entry() -> dict[str, Any]:
    place = {"module": "layers.0", "op": "aten.mm.default", "kind": "all_reduce", "group": "tp"}
    sums = {"phase": "forward", "calls": 2, "payload_bytes": 1024, "wire_bytes": 768.5}
    return {"ranks": 2, "places": [place | sums]}
