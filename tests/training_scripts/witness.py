"""`python witness.py FOLDER LINE…`: run scripts in turn; count communication in C++.

A line has the path of a script and its arguments. Writes `rank<N>.json`: of each line the time in
which it ran, the collectives in gloo's flight recorder, and the operations of gloo that torch's
profiler saw, because the flight recorder has no transfers.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def collectives() -> list[dict[str, Any]]:
    """Entries of gloo's flight recorder since the process began."""
    native: Any = torch._C
    return json.loads(native._distributed_c10d._dump_fr_trace_json()).get("entries", [])


def run(script: str, *args: str) -> dict[str, Any]:
    """Run the script under the profiler, and return the time and the counts."""
    native: Any = torch._C
    groups: list[Any] = []
    destroy = dist.destroy_process_group

    def destroy_later(*args: Any, **kwargs: Any) -> None:
        """Destroy as the program asks, but keep the groups until the profile has ended.

        Under the profiler gloo's threads hold tensors, and need the GIL to release them. A reducer
        that is the last to drop its group joins these threads with the GIL held: a deadlock.
        """
        groups.extend(dist.distributed_c10d._world.pg_map)
        destroy(*args, **kwargs)

    dist.destroy_process_group = destroy_later
    everywhere = native._profiler._ExperimentalConfig(profile_all_threads=True)
    sys.argv = [script, *args]
    num_before, begin_ns = len(collectives()), time.time_ns()
    with torch.profiler.profile(experimental_config=everywhere) as profile:
        runpy.run_path(script, run_name="__main__")
    end_ns = time.time_ns()
    dist.destroy_process_group = destroy
    # Not `profile.events()`, which takes longer than most scripts: only the names are needed.
    found: Any = profile.profiler
    names = (event.name() for event in found.kineto_results.events())
    return {
        "time_ns": (begin_ns, end_ns),
        "collectives": collectives()[num_before:],
        "profiled": Counter(name for name in names if name.startswith("gloo:")),
    }


def main(folder: str, *lines: str) -> None:
    """Run each line, and write the counts."""
    counted = [run(*shlex.split(line)) for line in lines]
    Path(folder, f"rank{os.environ['RANK']}.json").write_text(json.dumps(counted))


if __name__ == "__main__":
    main(*sys.argv[1:])
