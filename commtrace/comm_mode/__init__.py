"""`CommDebugMode`: communication of a block of code, counted by operator and by module.

    with CommDebugMode() as comm_mode:
        model(batch).sum().backward()
    comm_mode.get_comm_counts()[torch.ops.c10d_functional.all_reduce]

`mode` is the public class, `tally` its recorder sink, `counts` the numbers, `tree` the modules, and
`text` the table and the JSON.
"""

from commtrace.comm_mode.mode import CommDebugMode

__all__ = ["CommDebugMode"]
