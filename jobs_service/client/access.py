"""The common part of a client's operations: addresses, requests, and checks of names before a request."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from jobs_service import json_forms, names
from jobs_service.client.backoff import LONGEST_PAUSE
from jobs_service.client.connection import Again, Connection, Tries
from jobs_service.errors import (
    InvalidJob,
    JobsError,
    JobTooLarge,
    WorkerConflict,
    a_kind_of,
    in_one_line,
    shown,
)
from jobs_service.http import wire
from jobs_service.model import JobId, JobType, RunningJob
from jobs_service.sources import Sources

T = TypeVar("T")

_KEY_BYTES: Final = 16
_LONGEST_SEGMENT: Final = 20_000
"""Characters: above the limit of every store, below the limit of HTTP servers."""
_MOST_LOCKS: Final = 10_000
"""Most locks that are remembered; beyond it the oldest are dropped."""


class ServerAccess:
    """Access of the operations to the server.

    Attributes:
        connection: the connection to the server.
        sources: the source of randomness.
    """

    def __init__(self, connection: Connection, sources: Sources) -> None:
        self.connection = connection
        self.sources = sources
        self._locks: OrderedDict[str, str] = OrderedDict()

    def of_type(self, type: JobType, rest: str = "") -> str:
        """Return the path of a type. Raises InvalidJob for an invalid type."""
        self.connection.check_open()
        return f"/v1/types/{_segment('type', type)}{rest}"

    def of_job(self, type: JobType, id: JobId, rest: str = "") -> str:
        """Return the path of a job. Raises InvalidJob for an invalid type or id."""
        path = self.of_type(type, "/jobs/")
        check_id(type, id)
        try:
            return f"{path}{_segment('id', id)}{rest}"
        except JobsError as error:
            raise error.about(type, id) from None

    def hold(self, job: RunningJob) -> RunningJob:
        """Remember the lock of a job that was accepted here: its holder may read the job's secret fields."""
        path = self.of_job(job.type, job.id)
        self._locks[path] = job.lock.hex()
        self._locks.move_to_end(path)
        if len(self._locks) > _MOST_LOCKS:
            self._locks.popitem(last=False)
        return job

    async def get(self, type: JobType, id: JobId) -> Any:
        """Return a job in the server's form; a job that runs here includes its secret fields."""
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
        """Return the server's answer as JSON; arguments and errors as for `Connection.call`."""
        encoded = body if body is None or isinstance(body, bytes) else dumps(body)
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
        """Return an answer as decoded by a function.

        Raises:
            JobsError: the answer has a form that this version does not know.
        """
        try:
            return read(answer)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = in_one_line(f"{type(error).__name__}: {error}", 100)
            raise JobsError(f"{self.connection.url} answers what this version cannot read: {why}") from None

    def new_key(self) -> str:
        """Return an idempotency key: a request that is repeated with it takes effect once."""
        return self.sources.token(_KEY_BYTES).hex()


def dumps(form: Any) -> bytes:
    """Return a request as JSON.

    Raises:
        InvalidJob: it has a value that JSON cannot represent.
    """
    try:
        return wire.dumps(form)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"an argument that JSON cannot say: {in_one_line(str(error), 100)}") from None


def name_form(what: str, value: Any) -> Any:
    """Return the JSON form of a type, an id or a priority.

    Raises:
        InvalidJob: it is invalid.
    """
    if not isinstance(value, str | bytes | int | tuple) or isinstance(value, bool):
        raise InvalidJob(f"{what} {shown(value)}: {a_kind_of(value)}; allowed are str, bytes, int and tuples of these")
    try:
        form = json_forms.name(value)
        names.compact(form).encode()
    except (TypeError, ValueError, OverflowError, RecursionError, struct.error) as error:
        why = in_one_line(str(error), 100)
        raise InvalidJob(f"{what} {shown(value)}: the tuple layer cannot encode it: {why}") from None
    return form


def named(type: JobType) -> JobType:
    """Return the type if it is valid. Raises InvalidJob."""
    name_form("type", type)
    return type


def check_id(type: Any, id: Any) -> None:
    """Check that an id is valid.

    Raises:
        InvalidJob: it is not.
    """
    if not isinstance(id, str | bytes):
        raise InvalidJob(f"id {shown(id)}: {a_kind_of(id)}; allowed are str and bytes").about(type)
    try:
        name_form("id", id)
    except InvalidJob:
        raise InvalidJob(f"id {shown(id)}: a str that is not UTF-8 (a lone surrogate)", id=id) from None


def _segment(what: str, value: Any) -> str:
    """Return a type or an id as one segment of a path; raises like `name_form`, and JobTooLarge."""
    try:
        name_form(what, value)
        found = names.segment(value)
    except (InvalidJob, JobTooLarge) as error:
        raise (error.about(value) if what == "type" else error) from None
    if len(found) > _LONGEST_SEGMENT:
        refused = f"{what} {shown(value)}: {len(found)} characters in an address; at most {_LONGEST_SEGMENT} are sent"
        raise JobTooLarge(refused)
    return found
