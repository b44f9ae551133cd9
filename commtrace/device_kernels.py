"""Communication kernels of accelerators, recognized by their names.

`KERNELS` has a row per family of names; a project adds rows in `[tool.commtrace.kernels]`. A name
states the kind, and where its library encodes them the algorithm, the protocol and the reduction:

    ncclDevKernel_AllReduce_Sum_bf16_RING_LL      all_reduce, RING, LL, sum
    ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC   all_reduce, RSxLDMC_AGxSTMC
    vllm::cross_device_reduce_2stage<...>         all_reduce

A kernel of several kinds (`ncclDevKernel_Generic_1` of RCCL, or `SendRecv`, which runs all-to-all
too) has the kind of the operator that launched it, or `UNKNOWN`. Used by the importers of
profiles, and by analyses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from commtrace.collective_table import KINDS

UNKNOWN = "unknown"
"""Kind of a call if a trace shows only a kernel that serves several kinds."""

_NCCL = r"^(?:void )?[nrm]ccl(?:Sym|Symk)?(?:Dev)?Kernel_?([A-Za-z]*)"

KERNELS: Mapping[str, str] = {
    # NCCL, RCCL, MCCL and their symmetric-memory kernels: the kind is a part of the name.
    _NCCL: "",
    # oneCCL of XPU, CNCL of MLU, HCCL of NPU.
    r"\boneccl_(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)": "",
    r"\boneccl_": UNKNOWN,
    r"(?i)\bcncl(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast)": "",
    r"\bhcom_([A-Za-z]+)__": "",
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
        more: Kinds by patterns of whole names, as of a shell, which come before `KERNELS`.
    """
    # `translate` makes expressions that do not backtrack, whatever the pattern.
    rows = [
        (glob, re.compile(rf"\A{translate(glob)}"), kind) for glob, kind in (more or {}).items()
    ]
    rows += [(pattern, re.compile(pattern), kind) for pattern, kind in KERNELS.items()]

    # A trace has many launches of few kernels.
    @lru_cache(maxsize=65536)
    def recognized(name: str) -> Kernel | None:
        for pattern, expression, kind in rows:
            found = expression.search(name)
            if found:
                return _kernel(name, kind or _kind_in(found.group(1)), pattern)
        return None

    return recognized


_KINDS = {kind.replace("_", ""): kind for kind in KINDS}


def _kind_in(text: str | None) -> str:
    return _KINDS.get((text or "").lower().replace("_", ""), UNKNOWN)


DEVICES: Mapping[str, str] = {
    "nccl": "cuda", "rccl": "cuda", "xccl": "xpu", "ccl": "xpu", "oneccl": "xpu", "cncl": "mlu",
    "mccl": "musa",
}  # fmt: skip
"""Types of devices by the backend that serves them alone."""

_LAUNCHERS: Mapping[str, str] = {
    "cuda": "cuda", "hip": "cuda", "xpu": "xpu", "ur": "xpu", "ze": "xpu", "musa": "musa",
    "npu": "npu", "acl": "npu", "mlu": "mlu", "cnrt": "mlu", "hpu": "hpu", "syn": "hpu",
    "mtia": "mtia",
}  # fmt: skip
"""Types of devices by the beginnings of categories of launches, and of launching functions."""


def device_type(launchers: Iterable[str], backends: Iterable[str]) -> str:
    """Return the type of a rank's devices: as its launches show, else its backends; else cuda.

    >>> device_type(["runtime", "urEnqueueKernelLaunch"], ["cpu:gloo"])
    'xpu'

    Args:
        launchers: Categories of the launches, and names of the launching functions.
        backends: Configurations of backends, `cuda:nccl` or `cpu:gloo,npu:hccl`.
    """
    launching = {
        device for each in launchers for begin, device in _LAUNCHERS.items() if _begins(each, begin)
    }
    pairs = [part.rpartition(":") for each in backends for part in each.split(",")]
    serving = {device or DEVICES.get(name, "") for device, _, name in pairs if name != "gloo"}
    for found in (launching, serving - {"", "cpu"}):
        if len(found) == 1:
            return found.pop()
    return "cuda"


def _begins(name: str, begin: str) -> bool:
    """Return whether a name's first word is `begin`: `urEnqueue`, `xpu_runtime`, `cudaLaunch`."""
    return name.startswith(begin) and not name[len(begin) : len(begin) + 1].islower()


_CHECK = re.compile(r"checkForNaN")


def is_check(name: str) -> bool:
    """Return whether a kernel is torch's check of a call's tensors for NaN."""
    return _CHECK.search(name) is not None


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
