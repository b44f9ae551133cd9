"""Saved tensors that a compiled backward overwrites: donated buffers.

torch donates a saved tensor to inductor's backward unless its memory is that of an input, a result
or a gradient. Two saved tensors may still share memory, as two shards of one replicated tensor do:
a gradient written to the first changes the second. Inductor's cache of compiled graphs does not
distinguish backwards by what they overwrite, and takes one that overwrites a saved tensor for one
whose saved tensor is also a result. Both make values silently wrong, those of plain programs, too.
Installed by the package, once.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import wraps
from typing import Any

from dtensor_core.integrations.when_loaded import when_loaded


def install() -> None:
    """Donate only memory of one saved tensor, and let the cache distinguish what is donated."""
    when_loaded("torch._functorch._aot_autograd.graph_compile", _donate_unshared_memory)
    when_loaded("torch._inductor.codecache", _distinguish_donation)


def _donate_unshared_memory(graph_compile: Any) -> None:
    collect = graph_compile.collect_fw_donated_buffer_idxs

    @wraps(collect)
    def collect_unshared(
        fw_ins: Any, user_fw_outs: Any, bw_outs: Any, saved_tensors: Any
    ) -> list[int]:
        donated = collect(fw_ins, user_fw_outs, bw_outs, saved_tensors)
        storages = [
            graph_compile.StorageWeakRef(saved_tensors[index].untyped_storage())
            for index in donated
        ]
        num_tensors = Counter(storages)
        return [
            index
            for index, storage in zip(donated, storages, strict=True)
            if num_tensors[storage] == 1
        ]

    graph_compile.collect_fw_donated_buffer_idxs = collect_unshared


def _distinguish_donation(codecache: Any) -> None:
    details = codecache.FxGraphHashDetails
    describe = details.__init__

    @wraps(describe)
    def describe_with_donation(self: Any, *args: Any, **kwargs: Any) -> None:
        describe(self, *args, **kwargs)
        # The key is the hash of all attributes.
        self.donated = sys.modules["torch._inductor.utils"].get_donated_idxs()

    details.__init__ = describe_with_donation
