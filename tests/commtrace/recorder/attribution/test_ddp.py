"""Lifetime of DistributedDataParallel models whose calls are still to be written."""

import subprocess
import sys

import pytest

# gloo's threads release the tensors of a profiled gather; without a switch interval they wait for
# the GIL until the main thread gives it up by itself.
DROPPED_LAST = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commtrace.recorder.attribution import ddp

everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
sys.setswitchinterval(1000)
with torch.profiler.profile(experimental_config=everywhere):
    for _ in range(100):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = DistributedDataParallel(nn.Linear(4, 4))
        kept = {kept}
        group, model.process_group = model.process_group, None
        sent, received = [torch.ones(3)], [[torch.empty(3)]]
        dist.destroy_process_group()
        works = [group.gather(received, sent) for _ in range(10)]
        works[-1].wait()
        del works, group, model
        del kept
print("done")
"""


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("kept", ["ddp.BucketNames(model, 0, 20)", "ddp.UnusedNote(model)"])
def test_the_last_reference_to_a_model_may_be_dropped_while_gloo_works(kept: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DROPPED_LAST.replace("{kept}", kept)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "done", done.stderr
