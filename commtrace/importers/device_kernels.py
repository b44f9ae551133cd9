"""Communication kernels of accelerators, recognized by their names.

`KERNELS` has one row per family of names; a project adds rows in `[tool.commtrace.kernels]`. A name
states the kind, and where its library encodes them the algorithm, the protocol and the reduction:

    ncclDevKernel_AllReduce_Sum_bf16_RING_LL      all_reduce, RING, LL, sum
    ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC   all_reduce, RSxLDMC_AGxSTMC
    vllm::cross_device_reduce_2stage<...>         all_reduce

A kernel of several kinds (`ncclDevKernel_Generic_1` of RCCL, or `SendRecv`, which runs all-to-all
too) has the kind of the operator that launched it, or `UNKNOWN`. Used by the importer of profiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from commtrace.collective_table import KINDS

UNKNOWN = "unknown"
"""Kind of a call of which a trace shows only a kernel that serves several kinds."""

_NCCL = r"^(?:void )?[nr]ccl(?:Sym|Symk)?(?:Dev)?Kernel_?([A-Za-z]*)"

KERNELS: Mapping[str, str] = {
    # NCCL, RCCL and their symmetric-memory kernels: the kind is a part of the name.
    _NCCL: "",
    r"^(?:void )?msccl(?:pp)?\w*Kernel|\bmscclKernel_": UNKNOWN,
    # Peer-to-peer all-reduces of vLLM, SGLang, aiter, TensorRT-LLM and FlashInfer.
    r"\bcross_device_reduce_\dstage": "all_reduce",
    r"(?i)\b(?:one|two)_?shot_?all_?reduce": "all_reduce",
    r"\ballreduce_fusion_kernel|\ballreduce_prototype": "all_reduce",
    r"(?i)\blamport\w*all_?reduce|\bmoefinalize_allreduce": "all_reduce",
    # Symmetric memory of torch.
    r"\bmultimem_(?:one_shot_|two_shot_)?(all_reduce|all_gather|reduce_scatter)": "",
    r"\b(?:one|two)_shot_(all_reduce|reduce_scatter|all_gather)": "",
    # User buffers of Transformer Engine.
    r"userbuffers_\w*recv": "recv",
    r"userbuffers_\w*send": "send",
    r"userbuffers_\w*(?:_ag(?:_|\b)|allgather)": "all_gather",
    r"userbuffers_\w*(?:_rs(?:_|\b)|reducescatter)": "reduce_scatter",
    r"userbuffers_\w*(?:_ar(?:_|\b)|allreduce)": "all_reduce",
    # Tokens to experts: DeepEP, pplx and NVSHMEM.
    r"\bdeep_ep::\w+::(?:dispatch|combine)\b": "all_to_all",
    r"(?i)\bnvshmemi?_?\w*all_?to_?all": "all_to_all",
}
"""Kinds by regular expressions of kernel names.

Where the kind is empty, the first group of the expression has its name.
"""

_ALGORITHM = re.compile(
    r"_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|NVLS_TREE|NVLS|PAT)(?=_|\b)"
)
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\b)")
_SYMMETRIC = re.compile(
    r"ncclSymk?(?:Dev)?Kernel_[A-Za-z]+_(\w+?)(?:_(?:sum|prod|max|min|avg)\w*)?\b(?![\w])"
)
_REDUCTION = re.compile(r"_(Sum|Prod|Max|Min|Avg|PreMulSum|SumPostDiv)(?=_|\b)", re.IGNORECASE)
_REDUCTIONS = {"prod": "product", "premulsum": "premul_sum", "sumpostdiv": "avg"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """Facts that a kernel's name states; empty where it does not.

    Attributes:
        kind: The kind of communication, or `UNKNOWN`.
        algorithm: `RING`, `TREE`, ..., as its library names it.
        protocol: `LL`, `LL128` or `SIMPLE`.
        reduce_op: The reduction, of a kernel that reduces.
        pattern: The row of the table that recognized it.
    """

    kind: str
    algorithm: str = ""
    protocol: str = ""
    reduce_op: str = ""
    pattern: str = ""

    @property
    def has_block_per_channel(self) -> bool:
        """True of kernels of NCCL and RCCL, whose grid is their number of channels."""
        return self.pattern == _NCCL


def recognizer(more: Mapping[str, str] | None = None) -> Callable[[str], Kernel | None]:
    """Return a function that recognizes communication kernels by name.

    Args:
        more: Further rows, which come before those of `KERNELS`.
    """
    rows = [(re.compile(pattern), kind) for pattern, kind in {**(more or {}), **KERNELS}.items()]

    # A trace has many launches of few kernels.
    @lru_cache(maxsize=65536)
    def recognized(name: str) -> Kernel | None:
        for pattern, kind in rows:
            found = pattern.search(name)
            if found:
                return _kernel(name, kind or _kind_in(found.group(1)), pattern.pattern)
        return None

    return recognized


_KINDS = {kind.replace("_", ""): kind for kind in KINDS}


def _kind_in(text: str) -> str:
    return _KINDS.get(text.lower().replace("_", ""), UNKNOWN)


def _kernel(name: str, kind: str, pattern: str) -> Kernel:
    algorithm, protocol = _first(_ALGORITHM, name), _first(_PROTOCOL, name)
    if not algorithm:
        algorithm = _first(_SYMMETRIC, name)
        protocol = "" if algorithm else protocol
    # Older names state a reduction of kernels that only move data too: `SendRecv_..._Sum_int8_t`.
    reduction = _first(_REDUCTION, name).lower() if "reduce" in kind else ""
    return Kernel(kind, algorithm, protocol, _REDUCTIONS.get(reduction, reduction), pattern)


def _first(pattern: re.Pattern[str], name: str) -> str:
    found = pattern.search(name)
    return found.group(1) if found else ""
