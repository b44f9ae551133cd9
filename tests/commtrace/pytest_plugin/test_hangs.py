"""A test whose ranks hang is ended, with where they are and where they parted before."""

from __future__ import annotations

import pytest

from tests.commtrace.pytest_plugin.test_ranks import SPAWNED

pytest_plugins = ["pytester"]

HANGING = f"""
{SPAWNED}
def part(rank, folder):
    store = dist.FileStore(os.path.join(folder, "store"), 3)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    for step in range(5):
        reduce()
        if rank == 1 and step == 3:
            dist.broadcast(torch.ones(2), 0)
    dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
def test_processes_that_hang_are_ended_with_a_report(project) -> None:
    text = project.failure(
        HANGING
        + """
@pytest.mark.comms(timeout=6)
def test_it(tmp_path):
    mp.spawn(part, args=(str(tmp_path),), nprocs=3)
"""
    )
    assert "the ranks of the test did not end within 6 s, and were ended" in text
    assert "rank 1      broadcast 4 of group 0" in text
    assert "parted at   `if rank == 1 and step == 3:`" in text
    assert "rank 1 was here (most recent call last):" in text
    assert "dist.broadcast(torch.ones(2), 0)" in text
    assert "--comms-timeout" in text


def test_processes_that_end_in_time_are_left_alone(project) -> None:
    project.passes(
        SPAWNED
        + """
@pytest.mark.parametrize("timeout", [0, 100])
def test_it(tmp_path, timeout, request, comms):
    mp.spawn(body, args=(str(tmp_path),), nprocs=2)
    assert comms.counts() == {"all_reduce": 1}
""",
        "--comms-timeout=100",
    )
