"""Interception of every communication operator of the process, and every wait, while installed.

For each operator of `signatures` a kernel is registered at the dispatch key `BackendSelect`, where
these operators have no kernel of their own; for symmetric memory, this waits until the program has
loaded the module that allocates it. The kernel reports to the receiver and passes the call on.
Nothing is replaced, so nothing else in the program slows down, and removing the kernels restores
the dispatcher. Calls from C++ (DistributedDataParallel), other threads, inference mode and compiled
functions all pass it.

The collectives of dtensor_core bypass the dispatcher if nothing else observes it: dtensor_core
announces them and they go to the backend directly.

An operator outside the namespace `c10d` is recorded itself only if it issues no operator of `c10d`.
Waits are seen at `wait_tensor`, whose kernel is installed when there is a first result to wait for,
and at `torch.distributed.Work.wait`, which is replaced, as are functions that wait in C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import torch.distributed as dist
from torch.library import Library

from commtrace.recorder.bridge import set_issuer
from commtrace.recorder.events.signature import Signature
from commtrace.recorder.interception.kernels import (
    KEY,
    DispatcherKernel,
    batched,
    direct,
    functional,
    is_awaited,
    issuing,
    native,
    next_kernel,
    operator_named,
)
from commtrace.recorder.interception.receiver import CallReceiver
from commtrace.recorder.interception.reducers import FUNCTIONS_THAT_WAIT, recording_waits
from commtrace.recorder.interception.signatures import BATCH, SIGNATURES, WAIT, WAIT_FOR_ALL
from commtrace.recorder.interception.waits import wait_tensor, wait_tensors, work_wait
from commtrace.recorder.replaced import Replaced
from commtrace.torch_internals.dispatcher import has_operator
from commtrace.when_loaded import when_loaded

SYMMETRIC = "symm_mem"
SYMMETRIC_MODULE = "torch.distributed._symmetric_memory"
"""Module that allocates symmetric memory; without it the operators on such memory have no input."""

_BY_NAMESPACE: dict[str, dict[str, Signature]] = {}
for _name, _signature in SIGNATURES.items():
    _BY_NAMESPACE.setdefault(_name.partition("::")[0], {})[_name] = _signature


class Interception:
    """Kernels in the dispatcher and replaced methods, to be installed and removed.

    Attributes:
        of_operators: the installed kernels, by the identity of their operator.
    """

    def __init__(self, receiver: CallReceiver) -> None:
        self._receiver = receiver
        self._libraries: dict[str, Library] = {}
        self._kernels: dict[str, DispatcherKernel] = {}
        self.of_operators: dict[int, DispatcherKernel] = {}
        self._replaced = Replaced()
        self._lock = threading.Lock()
        self._stop_waiting: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Install the kernels."""
        receiver, pending = self._receiver, self._receiver.pending
        for namespace, signatures in _BY_NAMESPACE.items():
            if namespace != SYMMETRIC:
                self._register_all(namespace, signatures)
        self._stop_waiting = when_loaded(SYMMETRIC_MODULE, self._register_symmetric)
        if has_operator(BATCH):
            self._register(BATCH, batched(receiver, next_kernel(BATCH)))
        # A kernel costs time at each wait, so there is none before the first result.
        pending.before_first_result = self._register_wait_tensor
        set_issuer(issuing(receiver))
        self._replaced.replace(
            dist.Work, "wait", lambda wait: work_wait(pending, receiver.wait_raised, wait)
        )
        for owner, name in FUNCTIONS_THAT_WAIT:
            if owner and name in vars(owner):
                self._replaced.replace(owner, name, lambda f: recording_waits(f, pending.blocked))

    def uninstall(self) -> None:
        """Remove the kernels and restore the replaced methods."""
        self._stop_waiting()
        with self._lock:
            self._receiver.pending.before_first_result = None
            for library in self._libraries.values():
                # The kernels must be gone now, not once the library happens to be collected.
                library._destroy()
            self._libraries = {}
            self.of_operators.clear()
        set_issuer(None)
        self._replaced.restore()

    def _register_symmetric(self) -> None:
        """Install the kernels of symmetric memory, now that the program can have such memory."""
        with self._lock:
            if self._libraries:
                self._register_all(SYMMETRIC, _BY_NAMESPACE[SYMMETRIC])

    def _register_all(self, namespace: str, signatures: Mapping[str, Signature]) -> None:
        self._libraries[namespace] = Library(namespace, "IMPL")
        for name, signature in signatures.items():
            self._register(name, self._kernel(name, signature))

    def _register(self, name: str, kernel: DispatcherKernel | None) -> None:
        if kernel is not None:
            namespace, _, op = name.partition("::")
            self._libraries[namespace].impl(op, kernel, KEY, with_keyset=True)
            self.of_operators[id(operator_named(name))] = kernel

    def _register_wait_tensor(self) -> None:
        """Install the kernels that wait for results, now that there is something to wait for."""
        pending = self._receiver.pending
        with self._lock:
            # Several threads may have a first result at once, or another one may be uninstalling.
            if pending.before_first_result is not None:
                pending.before_first_result = None
                wait = wait_tensor(pending, self._receiver.wait_raised, next_kernel(WAIT))
                self._register(WAIT, wait)
                if has_operator(WAIT_FOR_ALL):
                    self._register(WAIT_FOR_ALL, wait_tensors(wait, next_kernel(WAIT_FOR_ALL)))

    def _kernel(self, name: str, signature: Signature) -> DispatcherKernel | None:
        """Return the kernel of an operator; None if this torch does not have the operator."""
        kernel = self._kernels.get(name)
        if kernel is None and has_operator(name):
            functional_kernel = direct if is_awaited(name) else functional
            make = native if name.startswith("c10d::") else functional_kernel
            kernel = make(self._receiver, name, signature, next_kernel(name))
            self._kernels[name] = kernel
        return kernel
