"""`commtrace record`: this process, as the rank that its launcher says it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from commtrace.errors import require_torch
from commtrace.launched_rank import TORCHRUN, launched_rank
from commtrace_cli.launching import (
    Program,
    check_run_folder,
    chosen_options,
    command_in_place,
    variables_in_place,
)
from commtrace_cli.options import outputs, recorded, scripts
from commtrace_cli.terminal import say

EXAMPLE = """
Examples:

- `torchrun --nproc-per-node 8 --no-python commtrace record -o RUN.comm train.py --steps 10`
- `srun commtrace record -o RUN.comm --detail collective -m my_package.train`
- `mpirun -n 4 commtrace record -o RUN.comm train.py`
"""

SETTINGS = {"allow_interspersed_args": False}


def record(
    script: scripts.Script,
    arguments: scripts.ScriptArguments = None,
    output: outputs.RunFolderOutput = Path("RUN.comm"),
    module: scripts.IsModule = False,
    detail: recorded.HowMuch = None,
    stacks: recorded.Stacks = False,
    max_calls: recorded.MaxCalls = None,
    every: recorded.Every = None,
    ring: recorded.Ring = None,
    values: recorded.Values = False,
    values_level: recorded.ValuesLevel = None,
    library: recorded.Libraries = None,
) -> None:
    """Record this process as the rank that its launcher says it is; start no others.

    Put it before the program in the command of torchrun (with --no-python), srun, mpirun or any
    launcher that sets RANK and WORLD_SIZE. Each rank adds its part to the folder RUN.comm. Nodes
    may share the folder or have their own; `commtrace merge` joins them. Where the command cannot
    be changed, set the variable COMMTRACE=RUN.comm instead.
    """
    require_torch("commtrace record")
    check_run_folder(output)
    from commtrace.launching.launcher import check_program

    check_program(script, is_module=module)
    launched = launched_rank(os.environ)
    chosen = chosen_options(detail, stacks, max_calls, every, ring, library, values, values_level)
    os.environ |= variables_in_place(output, chosen)
    if launched and launched.rank == 0:
        say(f"recording {launched.num_ranks} ranks, started by {launched.launcher}, in {output}")
    elif not launched:
        say(f"recording {script} in {output}")
    # The same process, so that the launcher's signals and its view of the exit code are right.
    program = Program(script, tuple(arguments or ()), module, nproc=1)
    by_torchrun = launched is not None and launched.launcher == TORCHRUN
    os.execv(sys.executable, command_in_place(program, by_torchrun=by_torchrun))
