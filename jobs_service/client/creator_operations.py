"""The operations of a client that create jobs: add, enqueue, resubmit, remove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jobs_service import json_forms
from jobs_service.arguments import (
    IfExists,
    check_duration,
    check_force,
    check_if_exists,
    check_iterable,
    json_of,
    new_jobs,
    to_seconds,
)
from jobs_service.client.access import ServerAccess, check_id, dumps, name_form
from jobs_service.client.adder import RemoteAdder, parts
from jobs_service.client.connection import Again
from jobs_service.durations import Duration, plain
from jobs_service.errors import (
    InvalidJob,
    JobTooLarge,
    NoTypeTimeout,
    a_kind_of,
    kind_of,
    shown,
)
from jobs_service.http import problems, wire
from jobs_service.model import UNSET, Job, JobId, JobState, JobType, NewJob, Priority, Removal, RunAt
from jobs_service.model.enqueueing import Enqueueable, How, delay_of, one_value, rule_of, unique_key
from jobs_service.model.signatures import as_enqueue, as_enqueue_many
from jobs_service.service import waiting

"""Seconds for the requests of a removal that is not to wait."""


class RemoteCreatorOperations:
    """The part of JobsClient for creators of jobs."""

    _access: ServerAccess
    _adder: RemoteAdder

    async def add(
        self,
        type: JobType,
        id: JobId,
        data: Any = None,
        *,
        priority: Priority = 0,
        run_at: RunAt | None = None,
        if_exists: IfExists = "error",
    ) -> Job:
        """Add a job; see JobsService.add. It is added once, even if an answer is lost and the request is repeated."""
        path = self._access.of_type(type, "/jobs")
        form = _described(type, id, priority, run_at)
        form["if_exists"] = check_if_exists(if_exists)
        body = with_json(form, "data", json_of(type, id, data) or None)
        return self._access.read(_uncounted, await self._adder.add(path, body))

    async def add_many(self, type: JobType, jobs: Iterable[NewJob], *, if_exists: IfExists = "error") -> list[Job]:
        """Add jobs of one type, as many per request as the limits allow; see JobsService.add_many.

        Each is added once, even if an answer is lost and the request is repeated.
        """
        rule = check_if_exists(if_exists)
        self._access.of_type(type)

        def bodies() -> Iterator[bytes]:
            for job in new_jobs(jobs):
                if not isinstance(job, NewJob):
                    raise InvalidJob(f"a job of type {kind_of(job)}; add_many takes NewJob objects").about(type)
                form = _described(type, job.id, job.priority, job.run_at)
                yield with_json(form, "data", json_of(type, job.id, job.data) or None)

        added: list[Job] = []
        for part in parts(bodies()):
            added += await self._add_together(type, part, rule)
        return added

    @as_enqueue
    async def enqueue(self, handler: Any, args: Any, arguments: dict[str, Any], how: How) -> Job:
        """Add a job for a handler; see JobsService.enqueue. A missing type is created."""
        self._access.connection.check_open()
        resolved = _handler_of(handler)
        path = self._access.of_type(resolved.type, "/jobs")
        body = self._enqueued(resolved, args, arguments, how)
        answer = await self._with_type(resolved, lambda: self._adder.add(path, body))
        return self._access.read(wire.job_of, answer)

    @as_enqueue_many
    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], how: How) -> list[Job]:
        """Add a job for a handler for each element of many arguments; see JobsService.enqueue_many.

        The error of a refused job is raised; the other jobs of the same request are added nevertheless.
        """
        self._access.connection.check_open()
        resolved = _handler_of(handler)
        self._access.of_type(resolved.type)
        bodies = (self._enqueued(resolved, args, {}, how) for args in check_iterable("jobs", jobs))
        added: list[Job] = []
        for part in parts(bodies):
            added += await self._enqueue_lines(resolved, part)
        return added

    async def remove(self, type: JobType, id: JobId, *, force: bool = False) -> Removal:
        """Remove a job, or ask the worker of a running one to finish it; see JobsService.remove."""
        path = self._access.of_job(type, id)
        params = {"force": "true"} if check_force(force) else {}
        answer = await self._access.call("DELETE", path, params=params, again=Again.UNSENT)
        return self._access.read(lambda form: Removal(form["removal"]), answer)

    async def stop_and_remove(self, type: JobType, id: JobId, *, timeout: Duration) -> None:
        """Remove a job; if it runs, wait until its worker has finished it; see JobsService.stop_and_remove."""
        await waiting.stop_and_remove(self.remove, self._not_running, type, id, timeout)

    async def _not_running(self, type: JobType, id: JobId) -> None:
        async with self.subscribe(type, id) as events:  # type: ignore[attr-defined]
            async for event in events:
                if event.state is not JobState.RUNNING:
                    return

    async def resubmit(
        self, type: JobType, id: JobId, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job:
        """Run a job again; a running one after its present run; see JobsService.resubmit."""
        path = self._access.of_job(type, id, "/resubmit")
        body = changes_body({}, type, id, data, priority, run_at)
        answer = await self._access.call("POST", path, body, again=Again.UNSENT)
        return self._access.read(wire.job_of, answer)

    async def _add_together(self, type: JobType, bodies: list[bytes], rule: IfExists) -> list[Job]:
        """Add jobs in one transaction, or in several if they are too large for one."""
        body = b'{"jobs":[' + b",".join(bodies) + b'],"if_exists":' + wire.dumps(rule) + b"}"
        path, key = self._access.of_type(type, "/jobs"), self._access.new_key()
        try:
            answer = await self._access.call("POST", path, body, key=key)
        except JobTooLarge as error:
            if error.id is not None or len(bodies) == 1:
                raise
            middle = len(bodies) // 2
            first = await self._add_together(type, bodies[:middle], rule)
            return first + await self._add_together(type, bodies[middle:], rule)
        return self._access.read(lambda form: [*map(_uncounted, form["jobs"])], answer)

    async def _with_type(self, handler: Enqueueable[Any, Any], ask: Any) -> Any:
        """Return the answer to a request, and create the handler's type if it is missing."""
        try:
            return await ask()
        except NoTypeTimeout:
            if handler.timeout is None:
                raise
            await self.set_type_timeout(handler.type, handler.timeout)  # type: ignore[attr-defined]
            return await ask()

    def _enqueued(self, handler: Enqueueable[Any, Any], args: Any, arguments: dict[str, Any], how: How) -> bytes:
        """Return the request for one job of a handler.

        Raises:
            InvalidJob, JobTooLarge: the arguments or options are invalid.
        """
        data = handler.data(one_value(handler, args, arguments))
        delay = delay_of(how.run_at, how.delay)
        try:
            form = _when(how.priority, None if delay is not None else how.run_at)
        except InvalidJob as error:
            raise error.about(handler.type, how.id) from None
        if delay is not None:  # by the server's clock
            form["delay"] = delay
        if (rule := rule_of(handler, how)) == "unique":
            # Equal arguments are recognized by the handler's defaults, which are known beside the handler only.
            is_left_to_server = how.unique is True and isinstance(handler, _Named)
            form["unique"] = True if is_left_to_server else unique_key(handler, data, how.unique)
            if how.unique_for is not None:
                form["unique_for"] = check_duration("unique_for", how.unique_for)
        if how.id is not None or "unique" not in form:
            # Chosen here, so that a repeated request means the same job even without the key.
            id = self._access.new_key() if how.id is None else how.id
            check_id(handler.type, id)
            form["id"] = json_forms.name(id)
        if how.if_exists is not None:
            form["if_exists"] = rule
        for name, value in (("max_attempts", how.max_attempts), ("time_limit", plain(how.time_limit))):
            if value is not None:
                form[name] = value
        if handler.redaction is not None:  # nothing is shown before the handler starts for the first time
            form["redact"] = [*handler.redaction.paths]
        return with_json(form, "data", json_of(handler.type, how.id, data))

    async def _enqueue_lines(self, handler: Enqueueable[Any, Any], lines: list[bytes]) -> list[Job]:
        """Enqueue the jobs of one request, each line independently; raise the error of the first refused line."""
        path = self._access.of_type(handler.type, "/jobs")
        body, key = b"".join(line + b"\n" for line in lines), self._access.new_key()

        async def ask() -> Any:
            answers = await self._access.call("POST", path, body, key=key)
            return self._access.read(lambda forms: [wire.job_of(_unless_problem(form)) for form in forms], answers)

        found: list[Job] = await self._with_type(handler, ask)
        return found


def changes_body(form: dict[str, Any], type: Any, id: Any, data: Any, priority: Any, run_at: Any) -> bytes:
    """Return a request to change a job, with the given fields only.

    Raises:
        InvalidJob, JobTooLarge: a given value is invalid.
    """
    try:
        if priority is not UNSET:
            form["priority"] = name_form("priority", priority)
        if run_at is not UNSET:
            form["run_at"] = wire.time(to_seconds(run_at))
    except InvalidJob as error:
        raise error.about(type, id) from None
    return with_json(form, "data", json_of(type, id, data))


def with_json(form: dict[str, Any], name: str, json: bytes | None) -> bytes:
    """Return a JSON object with one more member in encoded form; None adds no member."""
    found = dumps(form)
    if json is None:
        return found
    return b"".join((found[:-1], b"," if form else b"", dumps(name), b":", json or b"null", b"}"))


def _described(type: Any, id: Any, priority: Any, run_at: Any) -> dict[str, Any]:
    """Return the fields of a new job other than its data; raises like `changes_body`."""
    check_id(type, id)
    try:
        form = {"id": name_form("id", id), **_when(priority, run_at)}
    except InvalidJob as error:
        raise error.about(type, id) from None
    return form


def _when(priority: Any, run_at: Any) -> dict[str, Any]:
    form: dict[str, Any] = {}
    if (named := name_form("priority", priority)) != 0:
        form["priority"] = named
    if (at := to_seconds(run_at)) is not None:
        form["run_at"] = wire.time(at)
    return form


class _Named(Enqueueable[Any, Any]):
    """A handler that is given by its type only; the server may know it."""

    takes_keywords = True

    def __init__(self, type: Any) -> None:
        self.type = type
        self.name = f"type {shown(type)}"

    @property
    def timeout(self) -> None:
        """None: the type must exist."""
        return

    def data(self, args: Any) -> Any:
        """Return the data of a job unchanged."""
        return args


def _handler_of(handler: Any) -> Enqueueable[Any, Any]:
    """Return the handler to enqueue a job for.

    Raises:
        InvalidJob: the argument is neither a handler nor a type.
    """
    if isinstance(handler, Enqueueable):
        return handler
    if isinstance(handler, str | bytes | int | tuple) and not isinstance(handler, bool):
        return _Named(handler)
    raise InvalidJob(
        f"{shown(handler)}: {a_kind_of(handler)}; enqueue takes what @jobs.handler(type) made of a function, or a type"
    )


def _uncounted(form: Any) -> Job:
    """Return the job in an answer to `add`, which does not tell whether the job existed before."""
    job = wire.job_of(form)
    job._enqueued = None
    return job


def _unless_problem(form: Any) -> Any:
    """Return the form of an added job; raise the error of a refused one."""
    if "problem" in form:
        raise problems.error_of(form["problem"])
    return form
