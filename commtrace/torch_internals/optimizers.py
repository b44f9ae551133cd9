"""The order in which hooks of all optimizers of torch are called."""

from typing import Any

from torch.utils.hooks import RemovableHandle

__all__ = ["call_first"]


def call_first(handle: RemovableHandle) -> None:
    """Call a hook before all others that are registered now.

    Args:
        handle: the handle of the hook.
    """
    hooks: Any = handle.hooks_dict_ref()
    hooks.move_to_end(handle.id, last=False)
