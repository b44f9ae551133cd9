"""torch's dispatcher: operators, dispatch keys, and contexts that skip some of them."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OpOverload", "TorchDispatchMode"]

_C: Any = torch._C

COMPOSITE_IMPLICIT = _C.DispatchKey.CompositeImplicitAutograd
"""Key of kernels that are made of differentiable operators."""
COMPOSITE_EXPLICIT = _C.DispatchKey.CompositeExplicitAutograd
"""Key of kernels for all backends whose gradient has a formula of its own."""
PYTHON_KERNELS = _C.DispatchKey.PythonDispatcher
"""Key that is included while torch prefers kernels written in Python, as when it traces."""
AHEAD_OF_AUTOGRAD = _C.DispatchKey.PythonTLSSnapshot
"""Key of tensor subclasses that is handled before autograd."""
LAZY_BITS = _C.DispatchKeySet(_C.DispatchKey.Conjugate) | _C.DispatchKeySet(_C.DispatchKey.Negative)
"""Keys of tensors that are lazily conjugated or negated."""

below_autograd = _C._AutoDispatchBelowAutograd
"""Context in which operators skip autograd, and thus have no gradient."""
below_inplace_or_view = _C._AutoDispatchBelowADInplaceOrView
"""Context in which operators skip autograd and the tracking of views and versions."""
without_python_kernels = _C._DisablePythonDispatcher
"""Context in which operators run their eager kernels even while torch traces."""
without_torch_dispatch = _C._DisableTorchDispatch
"""Context in which tensor subclasses are handled as plain tensors."""
without_torch_function = _C.DisableTorchFunction
"""Context in which no `__torch_function__` is called."""
with_keys = _C._ForceDispatchKeyGuard
"""Context with the given included and excluded key sets in force."""
no_dispatch_modes = _python_dispatch._disable_current_modes
"""Context without the dispatch modes in force, such as a FakeTensorMode."""

included_keys = _C._dispatch_tls_local_include_set
"""Return the key set that this thread adds to each call."""
excluded_keys = _C._dispatch_tls_local_exclude_set
"""Return the key set that this thread removes from each call."""
is_included = _C._dispatch_tls_is_dispatch_key_included
"""Return whether this thread adds a key to each call."""
key_of_device = _C._dispatch_key_for_device
"""Return the name of the key of a device type."""
has_kernel = _C._dispatch_has_kernel_for_dispatch_key
"""Return whether an operator, by its qualified name, has a kernel for a key."""
names_with_kernel = _C._dispatch_get_registrations_for_dispatch_key
"""Return the qualified names of the operators that have a kernel for a key."""
resolve_overload = _C._jit_resolve_packet
"""Return the name of the overload that fits given arguments."""

num_dispatch_modes = _C._len_torch_dispatch_stack
"""Return the number of dispatch modes in force."""
dispatch_mode_at = _C._get_dispatch_stack_at
"""Return the dispatch mode at a position of the stack; 0 is the outermost."""
num_function_modes = _C._len_torch_function_stack
"""Return the number of function modes in force."""

MODE_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""Flags of the process that say which kinds of dispatch modes are in force."""


def mode_flags() -> dict[str, bool]:
    """Return the flags."""
    return {name: getattr(_python_dispatch, name) for name in MODE_FLAGS}


def set_mode_flags(flags: dict[str, bool]) -> None:
    """Set the flags; dynamo's guards keep a second copy of the last."""
    from torch._C._dynamo.guards import set_is_in_mode_without_ignore_compile_internals

    for name, value in flags.items():
        setattr(_python_dispatch, name, value)
    set_is_in_mode_without_ignore_compile_internals(flags[MODE_FLAGS[-1]])


def decompositions() -> dict[Any, Any]:
    """Return torch's table of decompositions by overload; loaded at the first call."""
    from torch._decomp import decomposition_table

    return decomposition_table
