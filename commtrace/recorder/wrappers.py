"""Module paths without wrapper names, so that a wrapped module keeps its name.

    FullyShardedDataParallel    _fsdp_wrapped_module.wq                 wq
    torch.compile               layers.0._orig_mod.wq                   layers.0.wq
    checkpoint_wrapper          layers.0._checkpoint_wrapped_module     layers.0
    DistributedDataParallel     module.layers.0.wq                      layers.0.wq

Names that begin with an underscore are a wrapper's wherever they occur. `module` may be the user's
own name, and is dropped only below the classes that use it for the wrapped module.
"""

from __future__ import annotations

from typing import Any

from torch import nn

_OF_WRAPPERS = frozenset(
    {
        "_checkpoint_wrapped_module",
        "_forward_module",  # Lightning Fabric
        "_fsdp_wrapped_module",
        "_fpw_module",  # the name in older versions of FSDP
        "_orig_mod",
    }
)
_MODULE = "module"
_CLASSES = frozenset({"AveragedModel", "DataParallel", "DistributedDataParallel"})


def plain_path(root: nn.Module | None, path: str) -> str:
    """Return the path of a module below `root`, without wrapper names."""
    names = path.split(".") if path else []
    if _MODULE in names and root is not None:
        names = _without_modules(root, names)
    return ".".join([name for name in names if name not in _OF_WRAPPERS])


def plain_name(name: str) -> str:
    """Return a parameter's name without wrapper names, as far as the name alone shows them.

    >>> plain_name("layers.0._orig_mod.wq.weight")
    'layers.0.wq.weight'
    """
    return plain_path(None, name)


def _without_modules(root: nn.Module, names: list[str]) -> list[str]:
    kept, at = [], root
    for name in names:
        if name != _MODULE or not _wraps(at):
            kept.append(name)
        below: Any = at._modules.get(name) if at is not None else None
        at = below
    return kept


def _wraps(module: nn.Module | None) -> bool:
    """Return whether a module stores what it wraps as `module`."""
    return any(
        cls.__name__ in _CLASSES and cls.__module__.startswith("torch.")
        for cls in type(module).__mro__
    )
