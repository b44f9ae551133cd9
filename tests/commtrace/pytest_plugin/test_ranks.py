"""Ranks of every kind are recorded, and where they are not, that is reported."""

from __future__ import annotations

pytest_plugins = ["pytester"]

SPAWNED = """
import os
import torch.multiprocessing as mp

def body(rank, folder, comms=None, world_size=2):
    store = dist.FileStore(os.path.join(folder, "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if comms is not None:
        with comms.expecting(all_reduce=1), comms.region("here"):
            reduce()
        assert comms.ranks == [rank]
    else:
        reduce()
    dist.destroy_process_group()
"""


def test_threads_are_ranks_of_their_own(project) -> None:
    text = project.failure("""
def body(comms=None):
    reduce()
    if dist.get_rank() == 1:
        dist.barrier(dist.new_group([1], use_local_synchronization=True))

@pytest.mark.comms(all_reduce=1)
@pytest.mark.comms(barrier=1, ranks=[1])
@pytest.mark.comms(barrier=0, ranks=[0, 2])
@on_threads(3)
def test_passes():
    body()

@pytest.mark.comms(all_reduce=1, exact=True)
def test_fails():
    run_threads(body, 3)
""")
    assert "test_passes" not in text
    assert "found: barrier 1, expected 0" in text
    assert "barrier 0  barrier 1  1" in text
    assert "recorded, per rank, of 3 ranks:" in text


def test_operators_modules_and_reasons_of_threads_are_known(project) -> None:
    project.passes("""
from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh

class Net(torch.nn.Module):
    def forward(self, x):
        return x.softmax(1)

@pytest.mark.comms(all_gather=1, max_total=2, module="", group="tp")
@on_threads(2)
def test_it():
    x = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)),
                          [Shard(1)], src_data_rank=None)
    x.redistribute(placements=[Replicate()])
""")


def test_several_runs_of_one_test_add_up(project) -> None:
    project.passes(
        """
@pytest.mark.comms(all_reduce=3)
def test_it(comms):
    run_threads(reduce, 2)
    run_threads(reduce, 2, 2)
    assert comms.counts() == {"all_reduce": 3}
    with comms.expecting(all_reduce=1, ranks=[0, 1]):
        run_threads(reduce, 2, 1)
        comms.expect(all_reduce=4)
    comms.check()
""".replace("(all_reduce=3)", "(all_reduce=4)", 1)
    )


def test_the_fixture_speaks_of_the_rank_that_asks(project) -> None:
    project.passes("""
def test_it(comms):
    def body():
        with comms.expecting(all_reduce=1):
            reduce()
        if dist.get_rank() == 0:
            with comms.region("extra"):
                alone = dist.new_group([0], use_local_synchronization=True)
                dist.all_reduce(torch.ones(1), group=alone)
        rank = dist.get_rank()
        assert comms.ranks == [rank]
        assert comms.total() == (2 if rank == 0 else 1)
        comms.step()

    run_threads(body, 2)
    assert comms.ranks == [0, 1]
    assert comms.counts(rank=0) == {"all_reduce": 2}
    assert comms.counts("region", rank=0) == {"": 1, "extra": 1}
    comms.expect(all_reduce=1, region="extra", ranks=0)
""")


def test_a_rank_that_fails_an_expectation_fails_the_test(project) -> None:
    text = project.failure("""
def test_it(comms):
    def body():
        reduce()
        comms.expect(all_reduce=2)

    run_threads(body, 2)
""")
    assert "comms.expect(all_reduce=2) does not hold" in text


def test_processes_of_the_harness_are_ranks(project) -> None:
    text = project.failure("""
from dtensor_core.testing import run_processes

def body(comms):
    with comms.expecting(all_reduce=1):
        reduce()

def blind():
    from commtrace.recorder import listening
    reduce()
    listening._interception.uninstall()

@pytest.mark.comms(all_reduce=1, exact=True)
def test_passes(comms):
    run_processes(body, 2, comms)

@pytest.mark.comms(all_reduce=2)
@on_processes(2)
def test_fails():
    reduce()

@pytest.mark.comms(max_all_reduce=2)
def test_blind():
    run_processes(blind, 2)

@pytest.mark.comms(all_reduce=1)
@on_processes(2)
def test_passes_afterwards():
    reduce()
""")
    assert "2 failed, 2 passed" in text
    assert "found: all_reduce 1, expected 2" in text
    assert "in one of the ranks, the recorder no longer intercepts calls" in text


def test_spawned_processes_are_ranks_also_where_the_fixture_is_handed_on(project) -> None:
    project.passes(
        SPAWNED
        + """
@pytest.mark.comms(all_reduce=1, exact=True)
def test_it(tmp_path, comms):
    mp.spawn(body, (str(tmp_path), comms, 1), nprocs=1)
"""
    )


def test_forked_processes_are_ranks(project) -> None:
    text = project.failure(
        SPAWNED
        + """
@pytest.mark.comms(all_reduce=2, region="here")
def test_it(tmp_path, comms):
    context = mp.get_context("fork")
    ranks = [context.Process(target=body, args=(r, str(tmp_path), comms)) for r in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    assert [each.exitcode for each in ranks] == [0, 0]
"""
    )
    assert "found: all_reduce 1, expected 2 in region here" in text
    assert "all 2" in text


def test_a_process_that_was_killed_leaves_something_to_doubt(project) -> None:
    text = project.failure("""
import os, signal
import torch.multiprocessing as mp

def body(rank, folder):
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    reduce()
    dist.barrier()
    if rank == 1:
        import time
        time.sleep(0.6)
        os.kill(os.getpid(), signal.SIGKILL)

def run(folder):
    ranks = [mp.get_context("fork").Process(target=body, args=(r, str(folder))) for r in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)

@pytest.mark.comms(min_all_reduce=1)
def test_it(tmp_path):
    run(tmp_path)

@pytest.mark.comms(all_reduce=1, ranks=0)
def test_of_the_rank_that_lives(tmp_path):
    run(tmp_path)
""")
    assert "1 failed, 1 passed" in text
    assert "why: rank 1 was killed, or still running, before its recording was closed" in text


def test_torchs_test_cases_are_seen_or_said_to_be_unseen(project) -> None:
    text = project.failure("""
import torch.distributed._functional_collectives as funcol
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

class TestThreads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    @pytest.mark.comms(all_reduce=1)
    def test_functional(self):
        funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD).wait()

    @pytest.mark.comms(max_all_reduce=9)
    def test_plain(self):
        reduce()

class TestProcesses(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @pytest.mark.comms(all_reduce=1)
    def test_it(self):
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
        reduce()
""")
    assert "1 failed, 2 passed" in text
    assert "of 2 calls on torch's threaded group (MultiThreadedTestCase), 2 bypassed" in text


def test_a_group_goes_by_the_axis_of_a_mesh_that_has_taken_it_over(project) -> None:
    project.passes("""
from torch.distributed.device_mesh import init_device_mesh

@pytest.fixture(scope="module")
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

@pytest.mark.comms(all_reduce=1, group="tp", exact=True)
@pytest.mark.parametrize("again", [False, True])
def test_of_a_fixture(mesh, again):
    dist.all_reduce(torch.ones(2), group=mesh.get_group())

def test_the_end_of_the_world(mesh):
    dist.destroy_process_group()

@pytest.mark.comms(all_reduce=1, group="tp", exact=True)
def test_fake():
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        dist.all_reduce(torch.ones(2), group=mesh.get_group())
@pytest.mark.comms(all_reduce=1, group="tp", exact=True)
@on_threads(4)
def test_of_threads():
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    dist.all_reduce(torch.ones(2), group=mesh.get_group())
@pytest.mark.comms(all_reduce=1, group="tp", exact=True)
@on_threads(4)
def test_two_axes():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(torch.ones(2), group=mesh.get_group("tp"))

@pytest.mark.comms(all_reduce=1, group="tp", exact=True)
@on_processes(2)
def test_of_processes():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.all_reduce(torch.ones(2), group=mesh.get_group())
""")


def test_what_a_test_replaces_is_put_back(project) -> None:
    import subprocess
    from multiprocessing.process import BaseProcess

    from torch.distributed.device_mesh import DeviceMesh

    from dtensor_core import observe

    before = BaseProcess.start, subprocess.Popen.__init__, DeviceMesh.__init__
    project.passes("""
@pytest.mark.comms(none=True)
def test_it():
    pass
""")
    assert before == (BaseProcess.start, subprocess.Popen.__init__, DeviceMesh.__init__)
    assert observe.harness_observer is None
