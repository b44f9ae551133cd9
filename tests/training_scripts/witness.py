"""`python witness.py FOLDER SCRIPT ARGS…`: run the script and count its communication in C++.

Writes `rank<N>.json`: the collectives in gloo's flight recorder, and the operations of gloo that
torch's profiler saw, because the flight recorder has no transfers.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def main(folder: str, script: str, *args: str) -> None:
    """Run the script under the profiler, and write the counts."""
    import torch
    import torch.distributed as dist

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
    with torch.profiler.profile(experimental_config=everywhere, acc_events=True) as profile:
        runpy.run_path(script, run_name="__main__")
    held = json.loads(native._distributed_c10d._dump_fr_trace_json())
    names = (event.name for event in profile.events() or ())
    counted = {
        "collectives": held.get("entries", []),
        "profiled": Counter(name for name in names if name.startswith("gloo:")),
    }
    Path(folder, f"rank{os.environ['RANK']}.json").write_text(json.dumps(counted))


if __name__ == "__main__":
    main(*sys.argv[1:])
