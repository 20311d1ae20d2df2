"""What the runner needs from the service in which it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from jobs_service.actors.context import Context
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.queue import EmptyQueue
from jobs_service.model import RunningJob, Worker


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """One service, as the runner sees it.

    Attributes:
        context: store, keyspace, settings and sources.
        operations: the group commit, where operations of the same moment share a transaction.
        worker: does the operations of running jobs.
        accept: takes jobs on these terms, or returns a watch on the queue. Jobs that are accepted for a caller who was
            canceled meanwhile are given back.
        count_due: returns how many jobs of a type are due, counted up to a limit, of priorities up to a packed one.
    """

    context: Context
    operations: GroupCommit
    worker: Worker
    accept: Callable[[TypeKeys, AcceptTerms], Awaitable[list[RunningJob] | EmptyQueue]]
    count_due: Callable[[TypeKeys, int, bytes | None], Awaitable[int]]
