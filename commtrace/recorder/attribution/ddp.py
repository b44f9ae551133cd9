"""Parameter names in the buckets of DistributedDataParallel, and its log of unused parameters.

They are resolved when a call is written. The reducer holds its lock while it waits for the last
buckets of a backward pass, which is forever if a rank is missing there. So a separate thread asks
it, which may get stuck and is then no longer waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from commtrace.recorder.module_place import Place
from commtrace.recorder.wrappers import plain_name
from commtrace.schema import ALL_USED, COPIED, SOME_UNUSED
from commtrace.torch_internals.autograd import current_graph_task_id


def hook_bucket(frame: FrameType | None) -> dist.GradBucket | None:
    """Return the bucket passed to a communication hook, found by the argument's name."""
    bucket = frame.f_locals.get("bucket") if frame is not None else None
    return bucket if isinstance(bucket, dist.GradBucket) else None


class ParameterNames:
    """Callable that returns the names of parameters in a model."""

    def __init__(self, model: nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._model = model
        self._parameters = parameters

    def __call__(self) -> Sequence[str]:
        """Return the names."""
        names = {id(each): plain_name(name) for name, each in self._model.named_parameters()}
        return [names.get(id(each), "") for each in self._parameters]


class _KeepsModel:
    """Keeps a DistributedDataParallel model alive until the call is written, a moment later.

    The thread that writes may drop the last reference to the model. Its reducer would then destroy
    the process group with the GIL held and join gloo's threads, which may be waiting for the GIL: a
    deadlock. A process group that Python drops is destroyed without the GIL, so it is dropped last.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._process_group = wrapper.process_group

    def __del__(self) -> None:
        del self._wrapper
        del self._process_group


class ReducerLog:
    """Log of a DistributedDataParallel model, as its reducer last reported it."""

    def __init__(self) -> None:
        self._data: dict[str, Any] = {}
        self._pass: tuple[Place | None, int] = None, -1
        self._num_sent = 0
        self._asking: threading.Thread | None = None

    def next_bucket(self, place: Place) -> int:
        """Return the index of the bucket that the reducer of the model at `place` sends now.

        It sends them in order, once after each forward call of the model. A bucket that is complete
        before those ahead of it is sent together with them.
        """
        # Places of another recording are others, whose calls are counted from the beginning.
        if self._pass[0] is not place or self._pass[1] != place.num_calls:
            self._pass, self._num_sent = (place, place.num_calls), 0
        self._num_sent += 1
        return self._num_sent - 1

    def ask(self, wrapper: Any) -> dict[str, Any] | None:
        """Return the log now; None if the reducer does not answer in time."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(
                target=self._ask, args=(wrapper, wrapper.process_group), daemon=True
            )
            self._asking.start()
            self._asking.join(_ANSWER_S)
        return None if self._asking.is_alive() else self._data

    def latest(self, wrapper: Any) -> dict[str, Any]:
        """Return the log; once the buckets have been rebuilt, they do not change any more."""
        if not self._data.get(_REBUILT):
            self.ask(wrapper)
        return self._data

    def _ask(self, wrapper: Any, _process_group: Any) -> None:
        # The group is an argument so that it is dropped after the model (see `_KeepsModel`).
        self._data = wrapper._get_ddp_logging_data()


_ANSWER_S = 2.0
_REBUILT = "rebuilt_per_bucket_param_indices"
_logs: WeakKeyDictionary[Any, ReducerLog] = WeakKeyDictionary()


def log_of(wrapper: Any) -> ReducerLog:
    """Return the log of a DistributedDataParallel model."""
    log = _logs.get(wrapper)
    if log is None:
        log = _logs[wrapper] = ReducerLog()
    return log


class BucketNames(_KeepsModel):
    """Callable that returns the parameter names in a bucket of DistributedDataParallel.

    The bucket's index and its number of elements are known.
    """

    def __init__(self, wrapper: Any, index: int, numel: int) -> None:
        super().__init__(wrapper)
        self._index = index
        self._numel = numel

    def __call__(self) -> Sequence[str]:
        """Return the names; none if they cannot be determined."""
        wrapper = self._wrapper
        # On the thread of a backward pass, whose reducer holds its lock, it is not asked at all.
        if current_graph_task_id() >= 0:
            return ()
        log = log_of(wrapper).latest(wrapper)
        named = [
            (plain_name(name), each)
            for name, each in wrapper.module.named_parameters()
            if each.requires_grad and name not in wrapper.parameters_to_ignore
        ]
        everything = [list(range(len(named)))]
        found = [
            [named[i][0] for i in indices]
            for buckets in (_rebuilt(log), everything, _initial(log, named))
            for indices in buckets[self._index : self._index + 1]
            if sum(named[i][1].numel() for i in indices if i < len(named)) == self._numel
        ]
        # The log does not state which of its buckets were in use.
        is_certain = all(sorted(each) == sorted(found[0]) for each in found)
        return found[0] if found and is_certain else ()


class UnusedNote(_KeepsModel):
    """Callable that returns DistributedDataParallel's last log entry on unused parameters.

    It logs the first ten passes, then every hundredth.
    """

    def __call__(self) -> str:
        """Return the note; empty if nothing has been logged yet."""
        if current_graph_task_id() >= 0:
            return ""
        log = log_of(self._wrapper).ask(self._wrapper)
        num_bytes = None if log is None else log.get("unused_parameter_size")
        return "" if num_bytes is None else SOME_UNUSED if num_bytes else ALL_USED


def copy_note() -> str:
    """Return the note on a bucket that gradients are copied into."""
    return COPIED


def _initial(log: Mapping[str, Any], named: Sequence[tuple[str, torch.Tensor]]) -> list[list[int]]:
    """Return the initial buckets: runs of consecutive parameters, the last parameters first."""
    sizes = log.get("bucket_sizes", "")
    buckets: list[list[int]] = []
    rest = iter(range(len(named)))
    for size in reversed([int(each) for each in sizes.split(",") if each.strip()]):
        bucket: list[int] = []
        while size > 0 and (i := next(rest, None)) is not None:
            bucket.append(i)
            size -= named[i][1].numel() * named[i][1].itemsize
        if size:  # parameters of several dtypes are distributed differently
            return []
        buckets.append(bucket)
    return buckets[::-1]


def _rebuilt(log: Mapping[str, Any]) -> list[list[int]]:
    """Return the parameter indices of each bucket as the reducer has rebuilt them."""
    texts = log.get(_REBUILT, "")
    return [[int(number) for number in each.split()] for each in texts.split(",") if each.strip()]
