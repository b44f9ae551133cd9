"""The benchmark of importing: its traces, and how it measures and judges processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.foreign_files import WRITERS
from benchmarks.importing import MOST_MEMORY, PROFILE, Measured, measured, table_of
from benchmarks.importing import MOST_SECONDS as BARS
from benchmarks.profiled_trace import NUM_LAYERS, OPERATORS_OF_LAYER, write_profile
from commtrace.importers import import_trace


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    paths = [folder / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        write_profile(path, rank, 2, 3_000_000)
    return paths


def test_the_traces_are_imported_with_every_kernel_joined_by_its_launch(files: list[Path]) -> None:
    trace = import_trace(files)
    num_steps = trace.num_rows("steps") // 2
    assert num_steps >= 1
    num_layers = 2 * 2 * num_steps * NUM_LAYERS
    assert trace.num_rows("comm") == num_layers
    assert trace.num_rows("kernels") == num_layers * (1 + OPERATORS_OF_LAYER)
    assert trace.num_rows("syncs") == 4 * num_layers
    assert min(trace.tables["syncs"]["kernel_id"]) >= 0
    assert trace.run["kernels"].endswith(f"by launch: {num_layers:,}")
    assert min(trace.tables["comm"]["payload_bytes"]) > 0
    assert min(trace.tables["comm"]["seq"]) == 0


def test_traces_are_as_large_as_they_are_asked_for(files: list[Path]) -> None:
    assert 3_000_000 <= files[0].stat().st_size < 9_000_000


def test_an_import_is_measured_with_the_processes_that_it_starts(
    files: list[Path],
) -> None:
    found = measured(files)
    assert found.num_files == 2
    assert found.num_bytes == sum(path.stat().st_size for path in files)
    assert found.cpu_s > 0
    assert 20e6 < found.largest_bytes <= found.total_bytes


def test_an_import_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the import failed"):
        measured([tmp_path / "nothing.json"])


MOST_SECONDS = BARS[PROFILE]
ONE = Measured(1, 100_000_000, MOST_SECONDS, 4.5, 200_000_000, 200_000_000)


@pytest.mark.parametrize("kind", WRITERS)
def test_files_of_every_kind_are_imported_and_about_as_large_as_asked(
    kind: str, tmp_path: Path
) -> None:
    name, write = WRITERS[kind]
    path = tmp_path / name.format(0)
    write(path, 0, 1, 300_000)
    assert import_trace([path]).num_rows("comm") > 0
    assert kind == PROFILE or 150_000 <= path.stat().st_size < 450_000
    assert kind in BARS


@pytest.mark.parametrize(
    ("second", "is_met"),
    [
        (replace(ONE, num_files=2, total_bytes=int(2 * MOST_MEMORY * ONE.total_bytes)), True),
        (replace(ONE, num_files=2, total_bytes=int(2 * MOST_MEMORY * ONE.total_bytes) + 1), False),
        (replace(ONE, num_files=4, total_bytes=int(2 * MOST_MEMORY * ONE.total_bytes) + 1), False),
        (replace(ONE, cpu_s=MOST_SECONDS + 0.1), False),
        (replace(ONE, cpu_s=2 * MOST_SECONDS, num_bytes=200_000_000), True),
    ],
)
def test_bars_are_for_100_megabytes_and_for_files_read_at_once(
    second: Measured, is_met: bool
) -> None:
    table, found = table_of([ONE, second], num_cores=2)
    assert found == is_met
    assert [bool(row.style) for row in table.rows] == [False, not is_met]
