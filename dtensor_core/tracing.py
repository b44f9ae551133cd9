"""Interfaces to torch.compile and torch.func.

- `untraced` marks functions that are not compiled when they run by themselves.
- `outside_graphs` marks functions that break a graph.
- `as_node` marks functions that a graph holds as a single node.
- `outside_transforms` marks functions that run outside of all transforms of `torch.func`.
- `depending` keeps a compiler from dropping a collective on a single rank.

Layouts are decided with plain numbers (`settled`) and without modes (`no_modes`). Nothing here
loads the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch

from dtensor_core.errors import TransformError
from dtensor_core.mesh import current_mesh
from dtensor_core.torch_internals.compilation import (
    current_transform,
    is_wrapped,
    maybe_unwrap_fake_script_object,
    skip_frames,
    without_transforms,
)
from dtensor_core.torch_internals.dispatcher import no_dispatch_modes, num_dispatch_modes
from dtensor_core.torch_internals.trees import tree_leaves, tree_map

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
_SYMBOLS = (torch.SymInt, torch.SymFloat)


def untraced(function: F) -> F:
    """Mark a function so that it is not compiled when called from code that dynamo runs.

    The same holds for the functions it calls. Functions called by the dispatcher and the autograd
    engine would otherwise be compiled in the middle of an operator, after a graph break. Calls that
    dynamo meets while tracing are unaffected.
    """
    skip_frames(function.__code__)
    return function


def outside_graphs(reason: str) -> Callable[[F], F]:
    """Mark a function so that dynamo breaks its graph at a call, which then runs uncompiled."""

    def mark(function: F) -> F:
        function._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
        function._torchdynamo_disable_msg = reason  # pyright: ignore[reportFunctionMemberAccess]
        return untraced(function)

    return mark


class Node(torch.Tensor):
    """A call that makes a DTensor, as a single node of a graph of torch.compile.

    Dynamo writes the construction of a traceable tensor class into its graph without tracing into
    it: `Node("zeros", 8, 8)` is a call of `functions["zeros"]`. There are no instances.
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}

    @untraced
    def __new__(cls, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function and return its result; meshes are wrapped while a graph is traced."""
        args, kwargs = tree_map(maybe_unwrap_fake_script_object, (args, kwargs))
        return cls.functions[name](*args, **kwargs)

    __tensor_flatten__ = __tensor_unflatten__ = None  # their presence makes the class traceable


def outside_transforms(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function of tensors outside of all transforms of `torch.func`.

    Its results are constants to the transforms. Inside of them its tensors would be wrapped on some
    ranks, where collectives then fail, while the other ranks wait.

    Raises:
        TransformError: A transform has wrapped an argument; raised on all ranks.
    """

    @wraps(function)
    @untraced
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_dynamo_compiling() or current_transform() is None:
            return function(*args, **kwargs)
        if any(map(_is_wrapped, tree_leaves((args, kwargs)))):
            raise TransformError(
                f"{function.__name__} of a tensor that torch.func transforms",
                found="a tensor that wraps another tensor",
                why="torch.func transforms operators only, and this is no operator",
                hint="pass DTensors to the transform; create and redistribute them outside",
            )
        with without_transforms():
            return function(*args, **kwargs)

    return call


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_wrapped(value)


def as_node(function: Callable[P, T]) -> Callable[P, T]:
    """Represent a DTensor-making function with a keyword `device_mesh` by a single graph node."""
    name = function.__name__
    Node.functions[name] = function
    eager = outside_transforms(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_dynamo_compiling():
            kwargs["device_mesh"] = current_mesh(kwargs.get("device_mesh"))  # pyright: ignore
            return Node(name, *args, **kwargs)  # pyright: ignore[reportReturnType]
        return eager(*args, **kwargs)

    return call


def settled(value: Any) -> Any:
    """Replace symbolic numbers, in tuples and lists too, by the numbers that they stand for.

    This guards a traced graph, which then holds for these numbers only.
    """
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, (tuple, list)):
        return type(value)([settled(each) for each in value])
    return value


def numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Settle the symbolic numbers among an operator's arguments.

    Raises:
        TypeError: None is symbolic.
    """
    if not any(isinstance(leaf, _SYMBOLS) for leaf in tree_leaves((args, kwargs))):
        raise TypeError(f"arguments without a hash: {args}, {kwargs}")
    return settled(tuple(args)), {name: settled(value) for name, value in kwargs.items()}


def no_modes() -> AbstractContextManager[Any]:
    """Return a context without dispatch modes, so that its operators are not part of a graph."""
    return no_dispatch_modes() if num_dispatch_modes() else nullcontext()


def is_transforming() -> bool:
    """True inside of a transform of `torch.func`, and while a graph is compiled."""
    return current_transform() is not None or torch.compiler.is_compiling()


def is_at_hand(tensor: torch.Tensor) -> bool:
    """True for a tensor whose values can be read without waiting: real, and on a CPU."""
    is_plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu"
    return is_plain and not is_wrapped(tensor) and not torch.compiler.is_compiling()


def depending(result: torch.Tensor, *inputs: torch.Tensor, mark: int = 0) -> torch.Tensor:
    """Return `result`, made to depend on `inputs` while compiling; otherwise unchanged.

    The dependency is an added zero. A compiler drops operators that no result needs, collectives
    included. A rank with an empty shard or a neutral value needs less than the others, and would
    drop a collective that they join. A compiler also merges equal operators; a different `mark`
    keeps apart operators that are equal on some ranks only.
    """
    if not torch.compiler.is_compiling():
        return result
    for tensor in inputs:
        # Made from an empty part, as 0 times an infinity or a nan among the values would be nan.
        nothing = tensor.unsqueeze(0).narrow(0, 0, 0).ne(0)
        nothing = (nothing.long().ne(mark) if mark else nothing).any()
        result = result + nothing.to(result.dtype)
    return result
