"""Context managers that also decorate functions, including coroutines and generators.

`contextlib.ContextDecorator` exits when the call returns, which for coroutines and generators only
creates an object: their bodies would run outside the context.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from commtrace.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Decorator(contextlib.ContextDecorator):
    """Context manager; each call of a decorated function runs in the result of `_recreate_cm`."""

    def _recreate_cm(self) -> Any:
        return self

    def __call__(self, function: _Function) -> _Function:
        """Record each call of a function, and a coroutine or generator until it ends.

        Raises:
            UsageError: the function is an asynchronous generator.
        """
        if inspect.isasyncgenfunction(function):
            raise UsageError(
                f"cannot record the asynchronous generator {function.__qualname__}()",
                why="its end cannot be detected",
                attempt="use `with commtrace.record(...)` inside it or around its loop",
            )
        if inspect.iscoroutinefunction(function):
            return self._around_coroutine(function)
        if inspect.isgeneratorfunction(function):
            return self._around_generator(function)
        return super().__call__(function)

    def _around_coroutine(self, function: Any) -> Any:
        @functools.wraps(function)
        async def recorded(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return await function(*args, **kwargs)

        return recorded

    def _around_generator(self, function: Any) -> Any:
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return (yield from function(*args, **kwargs))

        return recorded
