"""Blocks over transactions that the application drives itself, for their tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import fdb

from jobs_service import JobsService, JobState, RunningJob
from jobs_service.errors import TransactionConflict
from jobs_service.service.transactions import WithinTransaction
from jobs_service.store.memory import MemoryStore
from tests.service.support import T1
from tests.stores import FDB_VARIABLE

PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED


class Application(Protocol):
    """A transaction that the application drives.

    Attributes:
        tr: what within() takes.
        conflict: what `commit` raises when another transaction has changed what this one has read.
    """

    tr: Any
    conflict: type[Exception]

    def commit(self) -> None: ...


class MemoryApplication:
    """Has a transaction of the service's own memory store."""

    conflict: type[Exception] = TransactionConflict

    def __init__(self, jobs: JobsService) -> None:
        assert isinstance(jobs.store, MemoryStore)
        self.tr: Any = jobs.store.begin()

    def commit(self) -> None:
        """Commit it."""
        self.tr.commit()


class FoundationApplication:
    """Has a transaction of the cluster, over a connection of its own."""

    def __init__(self, jobs: JobsService) -> None:
        self.tr: Any = self.cluster().create_transaction()
        self.conflict: type[Exception] = fdb.FDBError

    @staticmethod
    def cluster() -> Any:
        """Return the connection, an fdb.Database."""
        fdb.api_version(730)
        return fdb.open(os.environ[FDB_VARIABLE])

    def commit(self) -> None:
        """Commit it."""
        self.tr.commit().wait()


APPLICATIONS: dict[str, Callable[[JobsService], Application]] = {
    "memory": MemoryApplication,
    "fdb": FoundationApplication,
}


"""How an application begins a transaction on the store of a service, by the kind of store."""


def begun(jobs: JobsService) -> Application:
    """Begin a transaction of the application on the service's store."""
    return APPLICATIONS[jobs.store.address.partition(":")[0]](jobs)


@contextmanager
def committed(jobs: JobsService) -> Iterator[WithinTransaction]:
    """A block on a transaction of its own, which is committed if the block does not raise."""
    application = begun(jobs)
    with jobs.within(application.tr) as tx:
        yield tx
    application.commit()


@contextmanager
def failed(jobs: JobsService, application: Application) -> Iterator[WithinTransaction]:
    """A block that ends with an error, which the application catches."""
    with contextlib.suppress(LookupError), jobs.within(application.tr) as tx:
        yield tx
        raise LookupError


def taken(tx: WithinTransaction) -> RunningJob:
    """Accept a job of type T1 that must be there."""
    job = tx.accept(T1)
    assert job is not None
    return job
