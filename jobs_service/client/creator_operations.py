"""What a client offers to those who create jobs: add, enqueue, resubmit, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Final

from jobs_service import json_forms
from jobs_service.arguments import IfExists, check_force, check_if_exists, check_iterable, check_timeout, new_jobs
from jobs_service.client.access import ServerAccess
from jobs_service.client.connection import Again
from jobs_service.errors import JobNotFound, JobTooLarge, NoTypeTimeout, job_name
from jobs_service.http import problems, wire
from jobs_service.layer import creation
from jobs_service.layer.creation import Spec, new_job_spec
from jobs_service.layer.enqueueing import UNIQUE, Enqueueable, How, Named, Wanted, handler_of, wanted
from jobs_service.layer.keyspace import place_of
from jobs_service.layer.signatures import as_enqueue, as_enqueue_many
from jobs_service.model import UNSET, Job, JobId, JobState, JobType, NewJob, Priority, Removal, RunAt, unpack_priority

_MOST_JOBS: Final = 500
_MOST_BYTES: Final = 500_000
"""Jobs and bytes of one request: well within what a server takes."""
_MOMENT: Final = 0.05
"""Seconds that a removal gets which is not to wait."""


class RemoteCreatorOperations:
    """The part of JobsClient for creators of jobs."""

    _access: ServerAccess

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
        """Add a job; see JobsService.add. It is added once, also if an answer is lost and it is asked for again."""
        path = self._access.of_type(type, "/jobs")
        spec = creation.spec_of(type, id, data, priority, run_at)
        form = {"id": json_forms.name(place_of(self._access.keys(type), id)[1]), **_described(spec)}
        form["if_exists"] = check_if_exists(if_exists)
        answer = await self._access.call("POST", path, _body(form, spec), key=self._access.new_key())
        return self._access.read(_uncounted, answer)

    async def add_many(self, type: JobType, jobs: Iterable[NewJob], *, if_exists: IfExists = "error") -> list[Job]:
        """Add jobs of one type, as many per request as the limits allow; see JobsService.add_many.

        Each is added once, also if an answer is lost and it is asked for again.
        """
        keys, rule = self._access.keys(type), check_if_exists(if_exists)

        def bodies() -> Iterator[bytes]:
            for job in new_jobs(jobs):
                spec = new_job_spec(keys.type, job)
                id = place_of(keys, job.id)[1]
                yield _body({"id": json_forms.name(id), **_described(spec)}, spec)

        added: list[Job] = []
        for part in _parts(bodies()):
            added += await self._add_together(type, part, rule)
        return added

    @as_enqueue
    async def enqueue(self, handler: Any, args: Any, arguments: dict[str, Any], how: How) -> Job:
        """Add a job for a handler; see JobsService.enqueue. Its type is made where it is missing."""
        self._access.connection.check_open()
        resolved = handler_of(handler, {})
        asked = wanted(resolved, args, arguments, how, self._access.sources)
        place_of(self._access.keys(resolved.type), asked.id)
        path = self._access.of_type(resolved.type, "/jobs")
        body = _enqueued(resolved, asked, how)
        key = self._access.new_key()
        answer = await self._with_type(resolved, lambda: self._access.call("POST", path, body, key=key))
        return self._access.read(wire.job_of, answer)

    @as_enqueue_many
    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], how: How) -> list[Job]:
        """Add a job for a handler for each of many arguments; see JobsService.enqueue_many.

        One that is refused is raised, and does not hold up the others of the same request.
        """
        self._access.connection.check_open()
        resolved = handler_of(handler, {})
        wants = (wanted(resolved, args, {}, how, self._access.sources) for args in check_iterable("jobs", jobs))
        added: list[Job] = []
        for part in _parts(_enqueued(resolved, each, how) for each in wants):
            added += await self._enqueue_lines(resolved, part)
        return added

    async def remove(self, type: JobType, id: JobId, *, force: bool = False) -> Removal:
        """Remove a job, or ask the worker of a running one to finish it; see JobsService.remove."""
        path = self._access.of_job(type, id)
        params = {"force": "true"} if check_force(force) else {}
        answer = await self._access.call("DELETE", path, params=params, again=Again.UNSENT)
        return self._access.read(lambda form: Removal(form["removal"]), answer)

    async def stop_and_remove(self, type: JobType, id: JobId, *, timeout: float) -> None:
        """Remove a job; if it runs, wait until its worker has finished it; see JobsService.stop_and_remove."""
        seconds = check_timeout(timeout)
        try:
            async with asyncio.timeout(None if seconds is None else max(seconds, _MOMENT)):
                removal = await self.remove(type, id)
                while removal is Removal.CANCELED:
                    try:
                        await self._not_running(type, id)
                        removal = await self.remove(type, id)
                    except JobNotFound:
                        return
        except TimeoutError:
            raise TimeoutError(
                f"job {job_name(type, id)} did not finish within {seconds} s; it stays canceled"
            ) from None

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
        spec = creation.spec_of(type, id, data, priority, run_at)
        answer = await self._access.call("POST", path, changes_body({}, spec), again=Again.UNSENT)
        return self._access.read(wire.job_of, answer)

    async def _add_together(self, type: JobType, bodies: list[bytes], rule: IfExists) -> list[Job]:
        """Add jobs in one transaction, or in several where one does not take them all."""
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
        """Return what is asked for, and make the handler's type if that was missing."""
        try:
            return await ask()
        except NoTypeTimeout:
            if handler.timeout is None:
                raise
            await self.set_type_timeout(handler.type, handler.timeout)  # type: ignore[attr-defined]
            return await ask()

    async def _enqueue_lines(self, handler: Enqueueable[Any, Any], lines: list[bytes]) -> list[Job]:
        """Enqueue what one request asks for, each line by itself; raise why the first one is refused that is."""
        path = self._access.of_type(handler.type, "/jobs")
        body, key = b"".join(line + b"\n" for line in lines), self._access.new_key()

        async def ask() -> Any:
            answers = await self._access.call("POST", path, body, key=key)
            return self._access.read(lambda forms: [wire.job_of(_unless_problem(form)) for form in forms], answers)

        found: list[Job] = await self._with_type(handler, ask)
        return found


def changes_body(form: dict[str, Any], spec: Spec) -> bytes:
    """Return a request to change a job: only what is given is in it."""
    if spec.priority is not None:
        form["priority"] = json_forms.name(unpack_priority(spec.priority))
    if spec.run_at is not UNSET:
        form["run_at"] = wire.time(spec.run_at)
    return with_json(form, "data", spec.json)


def with_json(form: dict[str, Any], name: str, json: bytes | None) -> bytes:
    """Return a JSON object with one more member that is encoded already; None for no member."""
    encoded = wire.dumps(form)
    if json is None:
        return encoded
    return b"".join((encoded[:-1], b"," if form else b"", wire.dumps(name), b":", json or b"null", b"}"))


def _described(spec: Spec) -> dict[str, Any]:
    """Return what a new job is to be beside its data."""
    form: dict[str, Any] = {}
    if spec.priority is not None and (priority := unpack_priority(spec.priority)) != 0:
        form["priority"] = json_forms.name(priority)
    if spec.run_at is not None and spec.run_at is not UNSET:
        form["run_at"] = wire.time(spec.run_at)
    return form


def _body(form: dict[str, Any], spec: Spec) -> bytes:
    return with_json(form, "data", spec.json or None)


def _enqueued(handler: Enqueueable[Any, Any], asked: Wanted, how: How) -> bytes:
    """Return the request for one job of a handler."""
    form = _described(asked.spec)
    if asked.rule == "unique":
        # Whoever knows the handler knows its defaults, and so which arguments are equal.
        is_left_to_server = how.unique is True and isinstance(handler, Named)
        form["unique"] = True if is_left_to_server else str(asked.id).removeprefix(UNIQUE)
        if asked.spec.unique_for:
            form["unique_for"] = asked.spec.unique_for
    else:
        form["id"] = json_forms.name(asked.id)
        if how.if_exists is not None:
            form["if_exists"] = asked.rule
    delay = how.delay if how.delay is not None else how.run_at if isinstance(how.run_at, timedelta) else None
    if delay is not None:  # by the server's clock
        form.pop("run_at", None)
        form["delay"] = delay.total_seconds() if isinstance(delay, timedelta) else delay
    for name, value in (("max_attempts", how.max_attempts), ("time_limit", how.time_limit)):
        if value is not None:
            form[name] = value
    return _body(form, asked.spec)


def _uncounted(form: Any) -> Job:
    """Return the job of an answer to `add`, which does not tell whether it was there."""
    job = wire.job_of(form)
    job._enqueued = None
    return job


def _unless_problem(form: Any) -> Any:
    """Return a job of many that were added; raise why one was not."""
    if "problem" in form:
        raise problems.error_of(form["problem"])
    return form


def _parts(bodies: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield requests' worth of jobs, read as they are asked for."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and (len(part) == _MOST_JOBS or size + len(body) > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part
