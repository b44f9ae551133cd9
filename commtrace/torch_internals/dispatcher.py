"""torch's dispatcher: operators, dispatch keys, and the modes in force."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OpOverload", "TorchDispatchMode"]

_C: Any = torch._C

BACKEND_SELECT = _C.DispatchKey.BackendSelect
"""Key that is handled after autograd and before the backends; it has no kernels for collectives."""
CPU = _C.DispatchKey.CPU
"""Key of the CPU's kernels."""
AFTER_BACKEND_SELECT = _C._dispatch_keyset_full_after(BACKEND_SELECT)
"""Set of the keys that are handled after `BACKEND_SELECT`."""
exclude = _C._dispatch_tls_set_dispatch_key_excluded
"""Set whether this thread removes a key from each call."""
include = _C._dispatch_tls_set_dispatch_key_included
"""Set whether this thread adds a key to each call."""
is_excluded = _C._dispatch_tls_is_dispatch_key_excluded
"""Return whether this thread removes a key from each call."""
is_included = _C._dispatch_tls_is_dispatch_key_included
"""Return whether this thread adds a key to each call."""
keys_of_tensor = _C._dispatch_keys
"""Return the key set of a tensor, with the keys that this thread adds or removes."""
keys_of = _C.DispatchKeySet.from_raw_repr
"""Return the key set of a number whose bits are the keys."""

has_operator = _C._dispatch_has_kernel
"""Return whether torch has an operator of a qualified name."""
schemas = _C._jit_get_all_schemas
"""Return the schemas of all operators."""
schemas_of = _C._jit_get_schemas_for_operator
"""Return the schemas of an operator's overloads; none if there is no such operator."""

push_mode = _C._push_on_torch_dispatch_stack
"""Enter a dispatch mode."""
pop_mode = _C._pop_torch_dispatch_stack
"""Leave the innermost dispatch mode and return it."""
num_modes = _C._len_torch_dispatch_stack
"""Return the number of dispatch modes that this thread has entered, including a compiler's."""
current_mode = _python_dispatch._get_current_dispatch_mode
"""Return the innermost dispatch mode; None if there is none."""
no_dispatch_modes = _python_dispatch._disable_current_modes
"""Context without the dispatch modes in force."""
no_torch_functions = _C.DisableTorchFunction
"""Context without modes that replace torch's functions, such as a default device's."""
no_transforms = _C._DisableFuncTorch
"""Context without the transforms of `torch.func` in force."""
