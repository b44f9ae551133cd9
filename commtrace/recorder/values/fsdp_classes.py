"""Classes of torch's FSDP, without importing it, which takes longer than all of a recording."""

from __future__ import annotations

import sys


def fsdp_classes(*names: str) -> tuple[type, ...]:
    """Return the classes of these names; none if FSDP is not loaded, so no model can use them."""
    package = sys.modules.get("torch.distributed.fsdp")
    found = (getattr(package, name, None) for name in names)
    return tuple(each for each in found if each is not None)
