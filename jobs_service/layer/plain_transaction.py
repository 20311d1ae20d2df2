"""The operations of JobTransaction as plain methods, for functions without `await`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast, overload

from jobs_service.layer.reads import Listing
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import UNSET, Job, JobId, JobState, JobType, RunningJob
from jobs_service.model.enqueueing import Enqueue, EnqueueMany
from jobs_service.store.sync_transaction import PlainTransaction, drive

P = ParamSpec("P")
T = TypeVar("T")

# Inside a class that has a method `list`, the builtin goes by this name.
_Jobs: TypeAlias = list[Job]


def _plain(
    operation: Callable[Concatenate[JobTransaction, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[PlainJobTransaction, P], T]:
    """Turn a coroutine method into a plain one with the same result."""
    name = operation.__name__

    @functools.wraps(operation)
    def method(plain: PlainJobTransaction, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = drive(getattr(plain._operations(), name)(*args, **kwargs))
        return result

    return method


class PlainJobTransaction:
    """The operations of JobTransaction as plain methods, with the same arguments, results and errors.

    Every read blocks the calling thread.

    Attributes:
        kv: the store's transaction, for the application's own keys.
    """

    def __init__(self, jobs: JobTransaction) -> None:
        self._jobs: JobTransaction | None = jobs

    @property
    def kv(self) -> PlainTransaction:
        """The store's transaction: your own keys, in FoundationDB's vocabulary."""
        return PlainTransaction(lambda: self._operations().kv)

    sql = _plain(JobTransaction.sql)

    # Types

    set_type_timeout = _plain(JobTransaction.set_type_timeout)
    get_type_timeout = _plain(JobTransaction.get_type_timeout)
    clear_type_timeout = _plain(JobTransaction.clear_type_timeout)
    types = _plain(JobTransaction.types)
    pause = _plain(JobTransaction.pause)
    resume = _plain(JobTransaction.resume)
    paused = _plain(JobTransaction.paused)
    set_retention = _plain(JobTransaction.set_retention)

    # Creating and watching over jobs

    add = _plain(JobTransaction.add)
    add_many = _plain(JobTransaction.add_many)
    enqueue = cast(Enqueue[Job], _plain(cast(Any, JobTransaction.enqueue)))
    enqueue_many = cast(EnqueueMany[_Jobs], _plain(cast(Any, JobTransaction.enqueue_many)))
    remove = _plain(JobTransaction.remove)
    get = _plain(JobTransaction.get)
    active_ids = _plain(JobTransaction.active_ids)
    pending_count = _plain(JobTransaction.pending_count)

    def list(self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000) -> _Jobs:
        """Return jobs as this transaction sees them, in key order; see JobsService.list."""
        return drive(_all(self._operations().list(type, state=state, page_size=page_size)))

    # Running jobs

    accept = _plain(JobTransaction.accept)
    accept_many = _plain(JobTransaction.accept_many)
    update = _plain(JobTransaction.update)
    finish = _plain(JobTransaction.finish)
    release = _plain(JobTransaction.release)

    @overload
    def resubmit(
        self, type: RunningJob, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> RunningJob: ...

    @overload
    def resubmit(
        self, type: JobType, id: JobId, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job: ...

    def resubmit(
        self, type: Any, id: Any = None, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job:
        """Have a job run again: `resubmit(type, id)` as a creator, `resubmit(job)` as the running job's worker.

        See JobsService.resubmit and RunningJob.resubmit for arguments, results and errors.
        """
        return drive(self._operations().resubmit(type, id, data=data, priority=priority, run_at=run_at))

    def _operations(self) -> JobTransaction:
        assert self._jobs is not None
        return self._jobs


async def _all(listing: Listing) -> list[Job]:
    return await listing


def either(function: Callable[[Any], Any]) -> Callable[[JobTransaction], Awaitable[Any]]:
    """Return the coroutine function of a transaction function that may be a plain one.

    A plain function is given a PlainJobTransaction. If it returns a coroutine it is none: it is called again, with the
    JobTransaction.
    """

    async def run(tx: JobTransaction) -> Any:
        result = function(PlainJobTransaction(tx._block(True)))
        if not hasattr(result, "__await__"):
            return result
        if isinstance(result, Coroutine):
            result.close()  # it has not begun
        return await function(tx._block(False))

    return run
