"""Record waits for calls: `wait_tensor`, `wait_tensors` and `torch.distributed.Work.wait`."""

from __future__ import annotations

from typing import Any

import torch

from commtrace.recorder.clock import now
from commtrace.recorder.events.host_event import Raised
from commtrace.recorder.interception.kernels import BELOW, DispatcherKernel
from commtrace.recorder.interception.pending import PendingCalls
from commtrace.recorder.thread_state import CURRENT


def wait_tensor(
    pending: PendingCalls, raised: Raised, pass_on: DispatcherKernel
) -> DispatcherKernel:
    """Return the kernel of `wait_tensor`."""

    def kernel(keyset: Any, tensor: torch.Tensor) -> torch.Tensor:
        call = pending.call_of_result(tensor)
        if call is None:
            return pass_on(BELOW[keyset.raw_repr()], tensor)
        begin = now()
        call.begun_wait(begin, CURRENT.state.native_id)
        try:
            result = pass_on(BELOW[keyset.raw_repr()], tensor)
        except BaseException as error:
            pending.wait_raised(call, begin)
            raised(error)
            raise
        pending.waited_for_result(call, begin)
        return result

    return kernel


def wait_tensors(wait: DispatcherKernel, pass_on: DispatcherKernel) -> DispatcherKernel:
    """Return the kernel of `wait_tensors`, which waits for each tensor in turn by `wait`."""

    def kernel(keyset: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        for tensor in tensors:
            wait(keyset, tensor)
        return pass_on(BELOW[keyset.raw_repr()], tensors)

    return kernel


def work_wait(
    pending: PendingCalls, raised: Raised, original: DispatcherKernel
) -> DispatcherKernel:
    """Return an instrumented `torch.distributed.Work.wait`."""

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = pending.call_of_work(self)
        if call is None:
            return _wait_again(pending, original, self, args, kwargs)
        begin = now()
        call.begun_wait(begin, CURRENT.state.native_id)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            pending.wait_raised(call, begin)
            raised(error)
            raise
        pending.waited_for_work(call, begin, self)
        return result

    return wait


def _wait_again(
    pending: PendingCalls, original: DispatcherKernel, work: Any, args: Any, kwargs: Any
) -> Any:
    """Wait for a call that has been waited for, or that is not recorded."""
    call = pending.waited_call(work)
    if call is None:
        return original(work, *args, **kwargs)
    begin = now()
    try:
        return original(work, *args, **kwargs)
    finally:
        pending.waited_later(call, begin, now())
