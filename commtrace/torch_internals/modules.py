"""The modules, parameters and buffers of a model, by identity.

`named_modules` and its relatives need modules with a hash, and a class may override them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["buffers_of", "modules_of", "own_parameters", "parameters_of"]


def modules_of(root: nn.Module, *, each_path: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the path and the module of each part of a model, which itself has an empty path.

    Args:
        root: The model.
        each_path: Yield a module at several paths once for each of them, rather than for the first.
    """
    yield from _below("", root, set(), each_path)


def parameters_of(root: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the first path of each parameter of a model, and the parameter."""
    return _members(root, "_parameters")


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a module has itself."""
    return [each for each in module._parameters.values() if each is not None]


def buffers_of(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the first path of each buffer of a model, and the buffer."""
    return _members(root, "_buffers")


def _members(root: nn.Module, of_module: str) -> Iterator[tuple[str, Any]]:
    met = set[int]()
    for path, module in modules_of(root):
        for name, each in getattr(module, of_module).items():
            if each is not None and id(each) not in met:
                met.add(id(each))
                yield _joined(path, name), each


def _below(
    path: str, module: nn.Module, met: set[int], each_path: bool
) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in met:
        return
    met.add(id(module))
    yield path, module
    for name, each in module._modules.items():
        if each is not None:
            yield from _below(_joined(path, name), each, met, each_path)
    if each_path:
        met.remove(id(module))  # it may be at another path, only not inside of itself


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
