"""Train the example a few steps in each mode and write every loss and gradient, bit for bit.

    torchrun --nproc-per-node 2 -m tests.demo.numerics FOLDER

Runs with and without recording must write the same files.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from dtensor_core import init_device_mesh
from tests.demo.loading import load_example

STEPS = 3


def gradient_digests(model: torch.nn.Module) -> dict[str, str]:
    """Hash the bytes of this rank's local gradient of each parameter."""
    digests = {}
    for name, parameter in model.named_parameters():
        gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
        assert gradient is not None, name
        digests[name] = hashlib.sha256(gradient.contiguous().numpy().tobytes()).hexdigest()
    return digests


def main() -> None:
    example = load_example()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    steps = []
    for sequence_parallel in (False, True):
        model = example.build(seed=0)
        example.parallelize(model, mesh, sequence_parallel=sequence_parallel)
        for loss in example.train(model, steps=STEPS, lr=3e-3, seed=0):
            steps.append({"loss": loss.hex(), "gradients": gradient_digests(model)})
    out = Path(sys.argv[1]) / f"rank{dist.get_rank()}.json"
    out.write_text(json.dumps(steps, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
