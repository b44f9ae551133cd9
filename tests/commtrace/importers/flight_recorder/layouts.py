"""Layouts of flight-recorder dumps by release, as facts about the fields and numbers in them.

Each fact was read in the headers of that release (TraceUtils.h of torch 2.4, NCCLUtils.hpp of 2.5,
FlightRecorder.hpp and FlightRecorderDetail.hpp of later ones), or in ProcessGroupNCCL.cpp and in
torchcomms' hooks/fr/FlightRecorder.cpp of their time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WITH_TIMEOUTS = ("timeout_ms",)
WITH_THREADS = (*WITH_TIMEOUTS, "thread_id", "thread_name")


@dataclass(frozen=True, slots=True)
class Layout:
    """Fields and numbers of the dumps of some releases.

    Attributes:
        version: `version` of the dump.
        added: Fields of an entry that version 2.1 does not have.
        library: Field with the version of NCCL.
        has_status: The dump has `pg_status`.
        has_json: There is a JSON form.
        counts_transfers_apart: A batch of transfers increases `p2p_seq_id`, not the other number.
        enters_parts: Calls of a batch of collectives have entries; otherwise only its end has an
        entry.
        enters_lists: All tensors of a list are entered; otherwise the first ones.
        barrier: Name of a barrier, which is an all-reduce of a single element.
    """

    version: str
    added: tuple[str, ...] = WITH_THREADS
    library: str = "comm_lib_version"
    has_status: bool = True
    has_json: bool = True
    counts_transfers_apart: bool = True
    enters_parts: bool = True
    enters_lists: bool = True
    barrier: str = "all_reduce_barrier"


_NEWEST = Layout("2.10")
_OLD = replace(
    _NEWEST,
    version="2.4",
    added=WITH_TIMEOUTS,
    library="",
    enters_parts=False,
    barrier="all_reduce",
)
_OLDER = replace(_OLD, counts_transfers_apart=False, enters_lists=False)

LAYOUTS: dict[str, Layout] = {
    "2.4": replace(_OLDER, version="2.1", added=(), has_status=False, has_json=False),
    "2.5": _OLDER,
    "2.6": _OLD,
    "2.7": _OLD,
    "2.8": replace(_NEWEST, version="2.9", library="nccl_version"),
    **{f"2.{minor}": _NEWEST for minor in range(9, 16)},
    "later": replace(_NEWEST, version="2.11"),
}
"""Layouts by release of torch."""

DISTINCT = ("2.4", "2.5", "2.6", "2.8", "2.13")
"""Releases that differ from each other."""
