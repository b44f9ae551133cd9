"""Workers of a Dask cluster that answer for parts of a stored run, in place of local processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from commtrace.errors import OutputError, UsageError
from commtrace.workers import JobFailure, result_of


class DaskWorkers:
    """Workers of a Dask cluster that see the dataset under the same path.

    Args:
        client: A `distributed.Client`.
    """

    num = 2  # whatever there is, rather than this process

    def __init__(self, client: Any) -> None:
        self._client = client

    def results(
        self, function: Callable[[Any, Any], Any], shared: Any, jobs: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the place and `function(shared, job)` of each job, as it is done.

        Raises:
            CommtraceError: A job raised it.
            OutputError: A job was lost with its workers, again and again.
        """
        from distributed import as_completed  # pyright: ignore[reportMissingImports]

        # The result of a task is computed again when its worker is lost; scattered data is not.
        sent = self._client.submit(_itself, shared, pure=False)
        futures = [
            self._client.submit(result_of, function, sent, job, pure=False, retries=2)
            for job in jobs
        ]
        places = {future.key: place for place, future in enumerate(futures)}
        try:
            for future in as_completed(futures, loop=self._client.loop):
                yield places[future.key], self._result(future)
        finally:
            with suppress(Exception):  # of a cluster that is gone
                self._client.cancel(futures)

    def _result(self, future: Any) -> Any:
        try:
            result = future.result()
        except Exception as error:
            raise OutputError(
                "cannot analyse the run on the Dask cluster",
                found=f"{type(error).__name__}: {error}"[:300],
                why="a part failed there, also when it was tried again",
                attempt="the logs of its workers, or the same command without --dask",
            ) from error
        if isinstance(result, JobFailure):
            raise result.error()
        return result


def _itself(value: Any) -> Any:
    return value


def dask_workers(address: str) -> DaskWorkers:
    """Connect to the scheduler of a Dask cluster.

    Args:
        address: Such as `tcp://scheduler:8786`.

    Raises:
        UsageError: distributed is not installed, or there is no scheduler.
    """
    summary = f"cannot use the Dask cluster at {address}"
    try:
        from distributed import Client, comm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(
            summary, found="no package distributed", attempt="`pip install 'commtrace[dask]'`"
        ) from error
    try:
        # A client that refuses an address waits for 10 s at exit, and prints a traceback.
        comm.get_address_host_port(address)
        return DaskWorkers(Client(address, timeout="5s", set_as_default=False))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            summary,
            found=str(error)[:300] or type(error).__name__,
            why="it is the address of a scheduler, tcp://host:port",
            attempt="start one with `dask scheduler`, and workers with `dask worker ADDRESS`",
        ) from error
