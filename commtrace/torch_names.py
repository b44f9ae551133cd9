"""Mapping of torch's names for communication, element types and places to commtrace's.

Flight recorder, profiler and process groups each spell a collective differently: `all_reduce`,
`allreduce_`, `nccl:all_reduce`, `ALLGATHER_coalesced`, `_allgather_base`. `kind_of` maps them all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

from commtrace.collective_table import KINDS, PEER, needing, wire_bytes

NOT_KNOWN = -1

_SPELLINGS = {
    "all_reduce": "allreduce allreduce_coalesced all_reduce_coalesced all_reduce_sparse "
    "allreduce_sparse sparse_all_reduce",
    "all_gather": "allgather allgather_base all_gather_base allgather_coalesced "
    "all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_coalesced "
    "allgather_into_tensor_coalesced all_gather_single all_gather_v allgatherv all_gatherv",
    "reduce_scatter": "reducescatter reduce_scatter_base reduce_scatter_tensor "
    "reduce_scatter_coalesced reduce_scatter_tensor_coalesced reduce_scatter_single "
    "reduce_scatter_v reduce_scatterv",
    "all_to_all": "all2all alltoall alltoall_base alltoallv all_to_allv all_to_all_single "
    "all_to_all_v_single",
    "broadcast": "broadcast_oop",
    "reduce": "reduce_oop",
    "gather": "gather_into_tensor gather_single",
    "scatter": "",
    "send": "isend",
    "recv": "irecv recv_any_source recvanysource",
    "barrier": "all_reduce_barrier monitored_barrier",
}
_KIND_OF = {
    spelling: kind for kind, others in _SPELLINGS.items() for spelling in (kind, *others.split())
}
NO_COMMUNICATION = frozenset({"wait", "init", "split", "new_window", "start_coalescing"})
"""Entries listed among collectives that send nothing."""

COALESCED = frozenset({"coalesced", "end_coalescing"})
"""Entries that close a batch of separately listed calls."""

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
TRANSFERS = frozenset(needing(PEER))


def kind_of(name: str) -> str:
    """Return the kind of a call by any of its names; an unknown name is returned as it is.

    >>> kind_of("_allgather_base_")
    'all_gather'
    """
    plain = name.lower().strip("_")
    return _KIND_OF.get(plain, plain)


_DTYPES = {
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2), "byte": ("uint8", 1), "char": ("int8", 1), "short": ("int16", 2),
    "int": ("int32", 4), "long": ("int64", 8), "bool": ("bool", 1), "uint16": ("uint16", 2),
    "uint32": ("uint32", 4), "uint64": ("uint64", 8), "complexhalf": ("complex32", 4),
    "complexfloat": ("complex64", 8), "complexdouble": ("complex128", 16),
    "unsigned char": ("uint8", 1), "signed char": ("int8", 1), "short int": ("int16", 2),
    "long int": ("int64", 8), "c10::bfloat16": ("bfloat16", 2), "c10::half": ("float16", 2),
    "c10::complex<float>": ("complex64", 8), "c10::complex<double>": ("complex128", 16),
}  # fmt: skip
_DTYPES |= {name: (name, itemsize) for name, itemsize in list(_DTYPES.values())}


def dtype_of(name: str) -> tuple[str, int]:
    """Return an element type's torch name and size in bytes from either name; -1 if unknown.

    >>> dtype_of("BFloat16")
    ('bfloat16', 2)
    """
    plain = name.lower()
    known = _DTYPES.get(plain)
    if known is None:
        known = plain.removeprefix("c10::"), 1 if "float8" in plain else NOT_KNOWN
    return known


def payload_of(kind: str, sent: int, received: int, itemsize: int, size: int) -> int:
    """Return the payload in bytes as bandwidth is counted (docs/bytes.md); -1 if unknown.

    Args:
        kind: the kind of the call.
        sent: number of elements sent, -1 if unknown.
        received: number of elements received, -1 if unknown.
        itemsize: bytes per element.
        size: size of the group, -1 if unknown.
    """
    if kind == "barrier":
        return 0
    elements = _elements(kind, sent, received, size)
    return elements * itemsize if elements >= 0 and itemsize > 0 else NOT_KNOWN


def _elements(kind: str, sent: int, received: int, size: int) -> int:
    if kind == "all_gather":
        return received if received >= 0 else _times(sent, size)
    if kind == "reduce_scatter":
        return sent if sent >= 0 else _times(received, size)
    if kind == "gather":
        return _times(sent, size)
    if kind == "scatter":
        return _times(received, size)
    if kind == "recv":
        return received if received >= 0 else sent
    return sent if sent >= 0 else received


def _times(elements: int, size: int) -> int:
    return elements * size if elements >= 0 and size > 0 else NOT_KNOWN


def wire_of(
    kind: str,
    payload: int,
    ranks: tuple[int, ...],
    rank: int,
    root: int,
    splits: Sequence[int] = (),
) -> int:
    """Return the bytes that `rank` must send in a ring of `ranks`; -1 if unknown.

    For an all-to-all with `splits`, the bytes to each member, it is the sum over other members.
    """
    if kind not in KINDS or payload < 0:
        return NOT_KNOWN
    if kind in TRANSFERS or kind == "barrier":
        return wire_bytes(kind, payload, 2)
    if rank not in ranks or (kind in ROOTED and root not in ranks):
        return NOT_KNOWN
    size = len(ranks)
    if len(splits) == size:
        return sum(splits) - splits[ranks.index(rank)]
    distance = (ranks.index(rank) - ranks.index(root)) % size if kind in ROOTED else 0
    return wire_bytes(kind, payload, size, distance=distance)


def shapes_text(shapes: Iterable[Sequence[int]]) -> str:
    """Format shapes as in table `comm`: `[8,16];[4]`."""
    return ";".join(f"[{','.join(map(str, shape))}]" for shape in shapes)


def mesh_axis_of(description: str) -> str:
    """Return the axis that torch's DeviceMesh writes into the description of its groups."""
    if not description.startswith("mesh_") or description == "mesh_default":
        return ""
    axis = description.removeprefix("mesh_")
    number = axis.removeprefix("dim_")
    return f"axis{number}" if number != axis and number.isdigit() else axis


_LIBRARIES = sys.stdlib_module_names | {
    "torch", "typing_extensions", "dtensor_core", "commtrace", "commtrace_cli",
}  # fmt: skip


_ROOT = Path(__file__).resolve().parents[1]
_CHECKOUT = tuple(f"{_ROOT / name}/" for name in ("commtrace", "dtensor_core", "cli/commtrace_cli"))
"""Folders of these packages if they are not installed in site-packages."""


def _parts(filename: str) -> tuple[str, ...]:
    return PurePosixPath(filename.replace("\\", "/")).parts


def is_installed(filename: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return not {"site-packages", "dist-packages"}.isdisjoint(_parts(filename))


@lru_cache(maxsize=65536)
def is_library(filename: str) -> bool:
    """Return whether a file belongs to torch, dtensor_core, commtrace or the standard library."""
    if not filename or filename.startswith("<"):
        return True
    if filename.startswith(_CHECKOUT):
        return True
    parts = _parts(filename)
    if "site-packages" in parts:
        after = parts[len(parts) - parts[::-1].index("site-packages") :]
        return bool(after) and after[0].removesuffix(".py") in _LIBRARIES
    if any(part.startswith("python3.") for part in parts):
        return True
    is_relative = not filename.startswith("/")
    return is_relative and parts[0].removesuffix(".py") in _LIBRARIES
