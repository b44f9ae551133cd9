"""Kernels that record communication operators before and after passing them on.

They run at the dispatch key `BackendSelect`, which every call passes on its way to its backend
(CPU, CUDA, Meta, ...). The interpreter lock is not held while a call is in its backend.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch

from commtrace.recorder.clock import now
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.signature import Signature
from commtrace.recorder.interception.receiver import CallReceiver
from commtrace.recorder.interception.signatures import BATCH, SIGNATURES, TRANSFERS, WAIT
from commtrace.recorder.thread_state import CURRENT
from commtrace.torch_internals.dispatcher import (
    AFTER_BACKEND_SELECT,
    BACKEND_SELECT,
    CPU,
    exclude,
    include,
    is_excluded,
    is_included,
    keys_of,
    keys_of_tensor,
)

KEY = "BackendSelect"
NUM_ISSUING_FRAMES = 3
"""Number of dtensor_core's own frames between `redistribute.execute`, or its equivalent, and the
call; none of them runs user code.
"""

DispatcherKernel = Callable[..., Any]


class _KeysBelow(dict[int, Any]):
    """Dispatch keys left below ours, by a call's full key set; each set is computed once."""

    def __missing__(self, keys: int) -> Any:
        self[keys] = below = keys_of(keys) & AFTER_BACKEND_SELECT
        return below


BELOW = _KeysBelow()


def next_kernel(name: str) -> DispatcherKernel:
    """Return a callable for the kernel that the operator would have called without ours."""
    return operator_named(name)._handle.redispatch_boxed


def operator_named(name: str) -> Any:
    """Return the operator of a qualified name, which lives as long as the process."""
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op).default


def keys_in(args: Iterable[Any]) -> Any:
    """Return the key set of the tensors among an operator's arguments; None without any."""
    found = None
    for each in args:
        if type(each) is list:
            if len(each) == 1 and type(each[0]) is torch.Tensor:  # without a call for most of them
                keys = keys_of_tensor(each[0])
            elif (keys := keys_in(each)) is None:
                continue
        elif isinstance(each, torch.Tensor):
            keys = keys_of_tensor(each)
        else:
            continue
        found = keys if found is None else found | keys
    return found


def _caller() -> FrameType | None:
    """Return the frame that called a kernel; None on a C++ thread such as the autograd engine's."""
    try:
        return sys._getframe(2)
    except ValueError:
        return None


def native(
    receiver: CallReceiver, name: str, signature: Signature, pass_on: DispatcherKernel
) -> DispatcherKernel:
    """Return a kernel of an operator of `c10d`."""

    def kernel(keyset: Any, *args: Any) -> Any:
        if not receiver.buffers:  # in a forked process, or during interpreter shutdown
            return pass_on(BELOW[keyset.raw_repr()], *args)
        state = CURRENT.state
        # `_caller`, inlined to save a call.
        try:
            frame = sys._getframe(1)
        except ValueError:  # a C++ thread such as the autograd engine's
            frame = None
        call = receiver.issue(name, signature, args, frame, state)
        if call is None:
            return pass_on(BELOW[keyset.raw_repr()], *args)
        try:
            result = pass_on(BELOW[keyset.raw_repr()], *args)
        except BaseException as error:
            # After an interrupt as well, or the call would remain outstanding.
            receiver.raised(call, error, state)
            raise
        receiver.pending.returned(call, result, state)
        return result

    return kernel


def issuing(receiver: CallReceiver) -> DispatcherKernel:
    """Return a function that issues dtensor_core's collectives and records them directly."""

    def issue(native_op: str, given: Any, function: DispatcherKernel, args: Any) -> Any:
        if not receiver.buffers:
            return function(*args)
        state, frame = CURRENT.state, sys._getframe(1 + NUM_ISSUING_FRAMES)
        call = receiver.issue(native_op, SIGNATURES[native_op], given, frame, state)
        if call is None:
            return function(*args)
        try:
            work = function(*args)
        except BaseException as error:
            receiver.raised(call, error, state)
            raise
        receiver.pending.returned(call, work, state)
        return work

    return issue


def is_awaited(name: str) -> bool:
    """Return whether results of an operator are waited for with `wait_tensor`."""
    return name.partition("::")[0] == WAIT.partition("::")[0]


def functional(
    receiver: CallReceiver, name: str, signature: Signature, pass_on: DispatcherKernel
) -> DispatcherKernel:
    """Return a kernel of an operator that issues operators of `c10d`, or communicates itself."""
    has_wait = is_awaited(name)
    reduce_op = signature.reduce_op if has_wait else None

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if not receiver.buffers:
            return pass_on(BELOW[keyset.raw_repr()], *args, **kwargs)
        state = CURRENT.state
        collectives = state.collectives
        begin = now()
        outer = collectives.functional_calls, collectives.functional_op, collectives.reduce_op
        outer_sent = collectives.functional_sent
        calls: list[Call] = []
        collectives.functional_calls = calls if has_wait else None
        collectives.functional_op = name
        collectives.reduce_op = "" if reduce_op is None else args[reduce_op]
        collectives.functional_sent = None if signature.sent is None else args[signature.sent]
        before = collectives.num_issued
        try:
            result = pass_on(BELOW[keyset.raw_repr()], *args, **kwargs)
            # No operator of c10d has run below, so this one communicates by itself.
            if collectives.num_issued == before:
                call = receiver.issue(name, signature, args, _caller(), state)
                if call is not None:
                    # Known only now, but issued before it was passed on.
                    call.issued(begin)
                    receiver.pending.returned(call, result, state)
        finally:
            collectives.functional_calls, collectives.functional_op, collectives.reduce_op = outer
            collectives.functional_sent = outer_sent
        if calls:
            receiver.pending.returned_functional(calls, result)
        return result

    return kernel


def direct(
    receiver: CallReceiver, name: str, signature: Signature, pass_on: DispatcherKernel
) -> DispatcherKernel:
    """Return a kernel that records a functional collective itself, once its c10d operator is known.

    The c10d operator below it then skips its own kernel, which is the largest single cost here. To
    that end our dispatch key is excluded on the way down, and the CPU key, which its kernel selects
    for new tensors, is included. Applies only to plain CPU tensors in groups that run no Python.
    """
    usual = functional(receiver, name, signature, pass_on)
    group, reduce_op = signature.group, signature.reduce_op
    native_op = ""

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal native_op
        if not receiver.buffers or not receiver.runs_in_cpp(args[0], args[group]):
            return usual(keyset, *args, **kwargs)
        state = CURRENT.state
        collectives = state.collectives
        if not native_op:
            before = collectives.num_issued
            result = usual(keyset, *args, **kwargs)
            native_op = collectives.last_op if collectives.num_issued == before + 1 else ""
            return result
        calls: list[Call] = []
        outer = collectives.functional_calls, collectives.functional_op, collectives.reduce_op
        collectives.functional_calls, collectives.functional_op = calls, name
        collectives.reduce_op = "" if reduce_op is None else args[reduce_op]
        call = receiver.issue(native_op, signature, args, _caller(), state)
        # The caller may have set these keys itself, so their state is restored, not cleared.
        had = is_excluded(BACKEND_SELECT), is_included(CPU)
        exclude(BACKEND_SELECT, True)
        include(CPU, True)
        try:
            result = pass_on(BELOW[keyset.raw_repr()], *args, **kwargs)
        except BaseException as error:
            if call is not None:
                receiver.raised(call, error, state)
            raise
        else:
            if call is not None:
                receiver.pending.returned(call, result, state)
        finally:
            exclude(BACKEND_SELECT, had[0])
            include(CPU, had[1])
            collectives.functional_calls, collectives.functional_op, collectives.reduce_op = outer
        if calls:
            receiver.pending.returned_functional(calls, result)
        return result

    return kernel


def batched(receiver: CallReceiver, pass_on: DispatcherKernel) -> DispatcherKernel:
    """Return the kernel for batches of fake or meta tensors; others become c10d operators."""

    def kernel(keyset: Any, names: Any, peers: Any, tags: Any, tensors: Any, group: Any) -> Any:
        state = CURRENT.state
        before = state.collectives.num_issued
        result = pass_on(BELOW[keyset.raw_repr()], names, peers, tags, tensors, group)
        if state.collectives.num_issued == before and receiver.buffers:
            frame = _caller()
            for name, *to, tensor in zip(names, peers, tags, tensors, strict=True):
                args = (tensor, group, *to)
                call = receiver.issue(BATCH, TRANSFERS[name], args, frame, state)
                if call is not None:
                    receiver.pending.returned(call, None, state)
        return result

    return kernel
