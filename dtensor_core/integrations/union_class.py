"""Classes that stand for both our class and torch's of the same name, where torch tests for it.

Used by the patches of FSDP2 and of pipeline stages.
"""

from __future__ import annotations

from typing import Any


class UnionClass(type):
    """Metaclass of a class that has the instances of `ours` and `theirs`; calls make ours."""

    ours: Any
    theirs: Any

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (cls.ours, cls.theirs))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance of ours."""
        return cls.ours(*args, **kwargs)
