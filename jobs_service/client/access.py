"""What the operations of a client have in common: addresses, requests, names that are checked before any is sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from jobs_service import names
from jobs_service.client.backoff import LONGEST_PAUSE
from jobs_service.client.connection import Again, Connection, Tries
from jobs_service.errors import JobsError, WorkerConflict, in_one_line
from jobs_service.http import wire
from jobs_service.layer.keyspace import Keyspace, TypeKeys, place_of
from jobs_service.model import JobId, JobType, RunningJob
from jobs_service.sources import Sources

T = TypeVar("T")

_KEY_BYTES: Final = 16
_MOST_LOCKS: Final = 10_000
"""Locks that are remembered; beyond it the oldest are forgotten."""


class ServerAccess:
    """How operations get to the server.

    Attributes:
        connection: to it.
        keyspace: what checks types and ids, as a store does.
        sources: randomness.
    """

    def __init__(self, connection: Connection, sources: Sources) -> None:
        self.connection = connection
        self.keyspace = Keyspace(b"")
        self.sources = sources
        self._locks: OrderedDict[str, str] = OrderedDict()

    def keys(self, type: JobType) -> TypeKeys:
        """Return the keys of a type. Raises InvalidJob if no type can be called that."""
        self.connection.check_open()
        return self.keyspace.of(type)

    def of_type(self, type: JobType, rest: str = "") -> str:
        """Return the path of a type. Raises InvalidJob if no type can be called that."""
        return f"/v1/types/{names.segment(self.keys(type).type)}{rest}"

    def of_job(self, type: JobType, id: JobId, rest: str = "") -> str:
        """Return the path of a job. Raises InvalidJob if no job can be called that."""
        checked = place_of(self.keys(type), id)[1]
        return self.of_type(type, f"/jobs/{names.segment(checked)}{rest}")

    def hold(self, job: RunningJob) -> RunningJob:
        """Remember the lock of a job that was accepted here: who holds it may read everything of the job."""
        path = self.of_job(job.type, job.id)
        self._locks[path] = job.lock.hex()
        self._locks.move_to_end(path)
        if len(self._locks) > _MOST_LOCKS:
            self._locks.popitem(last=False)
        return job

    async def get(self, type: JobType, id: JobId) -> Any:
        """Return a job as the server shows it; one that runs here with what it hides from others."""
        path = self.of_job(type, id)
        lock = self._locks.get(path)
        if lock is not None:
            try:
                return await self.call("GET", path, params={"lock": lock})
            except WorkerConflict:  # it has ended, or was lost
                self._locks.pop(path, None)
        return await self.call("GET", path)

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        key: str | None = None,
        again: Again = Again.ALWAYS,
        wait: float = 0.0,
        tries: Tries | None = None,
        longest_pause: float = LONGEST_PAUSE,
    ) -> Any:
        """Return the JSON that the server answers; arguments and errors as for `Connection.call`."""
        encoded = body if body is None or isinstance(body, bytes) else wire.dumps(body)
        return await self.connection.call(
            method,
            path,
            encoded,
            params=params,
            key=key,
            again=again,
            wait=wait,
            tries=tries,
            longest_pause=longest_pause,
        )

    def read(self, read: Callable[[Any], T], answer: Any) -> T:
        """Return what is read of an answer.

        Raises:
            JobsError: it is not what this program knows.
        """
        try:
            return read(answer)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = in_one_line(f"{type(error).__name__}: {error}", 100)
            raise JobsError(f"{self.connection.url} answers what this version cannot read: {why}") from None

    def new_key(self) -> str:
        """Return an idempotency key: a request that is sent again with it is done once."""
        return self.sources.token(_KEY_BYTES).hex()
