"""Intercepts every communication operator of the process, and every wait, while installed.

For each operator of `signatures` a kernel is registered at the dispatch key `BackendSelect`. Every
call passes this key on its way to its backend (CPU, CUDA, Meta, ...), and these operators have no
kernel of their own there. The kernel reports to the recorder and passes the call on. Nothing is
replaced, so nothing else in the program slows down, and removing the kernels restores the
dispatcher. Calls from C++ (DistributedDataParallel), other threads, inference mode and compiled
functions all pass it. The interpreter lock is not held while a call is in its backend.

The collectives of dtensor_core bypass the dispatcher if nothing else observes it: dtensor_core
announces them and they go to the backend directly.

An operator outside the namespace `c10d` is recorded itself only if it issues no operator of `c10d`.
Waits are seen at `wait_tensor`, whose kernel is installed when there is a first result to wait for,
and at `torch.distributed.Work.wait`, which is replaced, as are functions that wait in C++.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.library import Library

from commtrace.recorder.bridge import let_issue
from commtrace.recorder.calls import Call
from commtrace.recorder.clock import now
from commtrace.recorder.recorder import Recorder
from commtrace.recorder.reducers import WAITING, waiting
from commtrace.recorder.signatures import BATCH, SIGNATURES, TRANSFERS, WAIT, Signature
from commtrace.recorder.thread_state import HERE

_KEY = "BackendSelect"
_STEPS_DOWN = 3
"""Number of dtensor_core's own frames between `redistribute.execute`, or its equivalent, and the
call; none of them runs user code.
"""

_OUR_KEY, _CPU_KEY = torch._C.DispatchKey.BackendSelect, torch._C.DispatchKey.CPU
_AFTER_KEY = torch._C._dispatch_keyset_full_after(_OUR_KEY)
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_include = torch._C._dispatch_tls_set_dispatch_key_included
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_is_included = torch._C._dispatch_tls_is_dispatch_key_included

Kernel = Callable[..., Any]


class _Below(dict[int, Any]):
    """Dispatch keys left below ours, by a call's full key set; each set is computed once."""

    def __missing__(self, keys: int) -> Any:
        self[keys] = below = torch._C.DispatchKeySet.from_raw_repr(keys) & _AFTER_KEY
        return below


_BELOW = _Below()


class Interception:
    """Kernels in the dispatcher and replaced methods, to be installed and removed."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._libraries: dict[str, Library] = {}
        self._work_wait: Kernel | None = None
        self._waiting: list[tuple[Any, str, Kernel]] = []
        self._lock = threading.Lock()

    def install(self) -> None:
        """Install the kernels."""
        namespaces = {name.partition("::")[0] for name in SIGNATURES}
        self._libraries = {namespace: Library(namespace, "IMPL") for namespace in namespaces}
        for name, signature in SIGNATURES.items():
            self._put_in(name, self._kernel(name, signature))
        self._put_in(BATCH, _batched(self._recorder, _next_kernel(BATCH)))
        self._recorder.before_first_wait = self._see_waits
        self._work_wait = vars(dist.Work)["wait"]
        let_issue(_issuing(self._recorder))
        dist.Work.wait = _work_waiting(self._recorder, self._work_wait)  # type: ignore[method-assign]
        for owner, name in WAITING:
            if function := vars(owner).get(name) if owner else None:
                self._waiting.append((owner, name, function))
                setattr(owner, name, waiting(function, self._recorder))

    def uninstall(self) -> None:
        """Remove the kernels and restore the replaced methods."""
        with self._lock:
            self._recorder.before_first_wait = None
            for library in self._libraries.values():
                library._destroy()
            self._libraries = {}
        let_issue(None)
        dist.Work.wait = self._work_wait  # type: ignore[method-assign]
        while self._waiting:
            setattr(*self._waiting.pop())

    def _put_in(self, name: str, kernel: Kernel | None) -> None:
        if kernel is not None:
            namespace, _, op = name.partition("::")
            self._libraries[namespace].impl(op, kernel, _KEY, with_keyset=True)

    def _see_waits(self) -> None:
        """Install the kernel of `wait_tensor`, now that there is a result to wait for."""
        with self._lock:
            if self._recorder.before_first_wait is not None:
                self._recorder.before_first_wait = None
                self._put_in(WAIT, _waiting(self._recorder, _next_kernel(WAIT)))

    def _kernel(self, name: str, signature: Signature) -> Kernel | None:
        if not torch._C._dispatch_has_kernel(name):  # an operator that this torch does not have
            return None
        if name.startswith("c10d::"):
            make = _native
        else:
            make = _straight if _is_awaited(name) else _functional
        return make(self._recorder, name, signature, _next_kernel(name))


def _next_kernel(name: str) -> Kernel:
    """Return a callable for the kernel that the operator would have called without ours."""
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op).default._handle.redispatch_boxed


def _caller() -> FrameType | None:
    """Return the frame that called a kernel; None on a C++ thread such as the autograd engine's."""
    try:
        return sys._getframe(2)
    except ValueError:
        return None


def _native(recorder: Recorder, name: str, signature: Signature, pass_on: Kernel) -> Kernel:
    def kernel(keyset: Any, *args: Any) -> Any:
        if not recorder.buffers:  # in a forked process, or during interpreter shutdown
            return pass_on(_BELOW[keyset.raw_repr()], *args)
        state = HERE.state
        call = recorder.issue(name, signature, args, _caller(), state)
        if call is None:
            return pass_on(_BELOW[keyset.raw_repr()], *args)
        try:
            result = pass_on(_BELOW[keyset.raw_repr()], *args)
        except BaseException:
            recorder.raised(call)
            raise
        recorder.returned(call, result, state)
        return result

    return kernel


def _issuing(recorder: Recorder) -> Kernel:
    """Return a function that issues dtensor_core's collectives and records them directly."""

    def issue(native_op: str, given: Any, function: Kernel, args: Any) -> Any:
        if not recorder.buffers:
            return function(*args)
        state, frame = HERE.state, sys._getframe(1 + _STEPS_DOWN)
        call = recorder.issue(native_op, SIGNATURES[native_op], given, frame, state)
        if call is None:
            return function(*args)
        try:
            work = function(*args)
        except BaseException:
            recorder.raised(call)
            raise
        recorder.returned(call, work, state)
        return work

    return issue


def _is_awaited(name: str) -> bool:
    return name.partition("::")[0] == WAIT.partition("::")[0]


def _functional(recorder: Recorder, name: str, signature: Signature, pass_on: Kernel) -> Kernel:
    is_awaited = _is_awaited(name)
    reduce_op = signature.reduce_op if is_awaited else None

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.buffers:
            return pass_on(_BELOW[keyset.raw_repr()], *args, **kwargs)
        state = HERE.state
        outer, begin = (state.functional, state.functional_op, state.reduce_op), now()
        calls: list[Call] = []
        state.functional = calls if is_awaited else None
        state.functional_op = name
        state.reduce_op = "" if reduce_op is None else args[reduce_op]
        before = state.num_issued
        try:
            result = pass_on(_BELOW[keyset.raw_repr()], *args, **kwargs)
            if state.num_issued == before:
                call = recorder.issue(name, signature, args, _caller(), state)
                if call is not None:
                    call.issue = begin
                    recorder.returned(call, result, state)
        finally:
            state.functional, state.functional_op, state.reduce_op = outer
        if calls:
            recorder.returned_functional(calls, result)
        return result

    return kernel


def _straight(recorder: Recorder, name: str, signature: Signature, pass_on: Kernel) -> Kernel:
    """Return a kernel that records a functional collective itself, once its c10d operator is known.

    The c10d operator below it then skips its own kernel, which is the largest single cost here. To
    that end our dispatch key is excluded on the way down, and the CPU key, which its kernel selects
    for new tensors, is included. Applies only to plain CPU tensors in groups that run no Python.
    """
    usual = _functional(recorder, name, signature, pass_on)
    group, reduce_op = signature.group, signature.reduce_op
    issued = ""

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal issued
        if not recorder.buffers or not recorder.runs_in_cpp(args[0], args[group]):
            return usual(keyset, *args, **kwargs)
        state = HERE.state
        if not issued:
            before = state.num_issued
            result = usual(keyset, *args, **kwargs)
            issued = state.issued if state.num_issued == before + 1 else ""
            return result
        calls: list[Call] = []
        outer = state.functional, state.functional_op, state.reduce_op
        state.functional, state.functional_op = calls, name
        state.reduce_op = "" if reduce_op is None else args[reduce_op]
        call = recorder.issue(issued, signature, args, _caller(), state)
        had = _is_excluded(_OUR_KEY), _is_included(_CPU_KEY)
        _exclude(_OUR_KEY, True)
        _include(_CPU_KEY, True)
        try:
            result = pass_on(_BELOW[keyset.raw_repr()], *args, **kwargs)
        except BaseException:
            if call is not None:
                recorder.raised(call)
            raise
        else:
            if call is not None:
                recorder.returned(call, result, state)
        finally:
            _exclude(_OUR_KEY, had[0])
            _include(_CPU_KEY, had[1])
            state.functional, state.functional_op, state.reduce_op = outer
        if calls:
            recorder.returned_functional(calls, result)
        return result

    return kernel


def _batched(recorder: Recorder, pass_on: Kernel) -> Kernel:
    """Return the kernel for batches of fake or meta tensors; others become c10d operators."""

    def kernel(keyset: Any, names: Any, peers: Any, tags: Any, tensors: Any, group: Any) -> Any:
        state = HERE.state
        before = state.num_issued
        result = pass_on(_BELOW[keyset.raw_repr()], names, peers, tags, tensors, group)
        if state.num_issued == before and recorder.buffers:
            frame = _caller()
            for name, peer, tensor in zip(names, peers, tensors, strict=True):
                args = (tensor, group, peer)
                call = recorder.issue(BATCH, TRANSFERS[name], args, frame, state)
                if call is not None:
                    recorder.returned(call, None, state)
        return result

    return kernel


def _waiting(recorder: Recorder, pass_on: Kernel) -> Kernel:
    def kernel(keyset: Any, tensor: torch.Tensor) -> torch.Tensor:
        call = recorder.call_behind(tensor)
        if call is None:
            return pass_on(_BELOW[keyset.raw_repr()], tensor)
        begin = now()
        result = pass_on(_BELOW[keyset.raw_repr()], tensor)
        recorder.waited(call, begin)
        return result

    return kernel


def _work_waiting(recorder: Recorder, original: Kernel) -> Kernel:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = recorder.call_of(self)
        if call is None:
            return original(self, *args, **kwargs)
        begin = now()
        result = original(self, *args, **kwargs)
        recorder.waited(call, begin, self)
        return result

    return wait
