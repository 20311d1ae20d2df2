"""A backend of Django's tasks: each task that is enqueued is a job, and `jobs-service serve` runs them.

Django 6 has the framework as `django.tasks`; for older releases it is the package `django-tasks`.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from time import time
from typing import Any, ClassVar, Final

import django
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from jobs_service import errors, outbox
from jobs_service.errors import (
    Discard,
    InvalidJob,
    InvalidSettings,
    JobCanceled,
    JobNotFound,
    JobsError,
    Snooze,
    a_kind_of,
    shown,
)
from jobs_service.model import Job, JobError, JobState, Outcome
from jobs_service.outbox.connections import first_value
from jobs_service.outbox.tables import POSTGRESQL, SQLITE
from jobs_service.run_data import MOST_HISTORY, HistoryKind
from jobs_service.runner.functions import BlockingJob
from jobs_service.runner.run import describe
from jobs_service.sync import JobsService

_FRAMEWORK: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"
_tasks: Final[Any] = import_module(_FRAMEWORK)
_base: Final[Any] = import_module(f"{_FRAMEWORK}.base")
_signals: Final[Any] = import_module(f"{_FRAMEWORK}.signals")
_exceptions: Final[Any] = import_module(f"{_FRAMEWORK}.exceptions")
_BaseTaskBackend: Final[Any] = import_module(f"{_FRAMEWORK}.backends.base").BaseTaskBackend
_normalized: Final[Any] = import_module(
    "django.utils.json" if _FRAMEWORK == "django.tasks" else "django_tasks.utils"
).normalize_json
_InvalidTask: Final[Any] = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
_Status: Final[Any] = _base.TaskResultStatus

_STATUSES: Final[Mapping[JobState | Outcome, Any]] = {
    JobState.PENDING: _Status.READY,
    JobState.RUNNING: _Status.RUNNING,
    Outcome.SUCCEEDED: _Status.SUCCESSFUL,
    Outcome.FAILED: _Status.FAILED,
    Outcome.CANCELED: _Status.FAILED,
}
_RAISED: Final = re.compile(r"^ +\S.*\n([\w.]+)(?=:|$)", re.MULTILINE)
"""In a traceback: the class of an exception, in the line behind the last of its frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(_base.TaskContext):  # type: ignore[misc]
    """The context of a task with `takes_context`.

    Attributes:
        job: the running job, with `progress`, `stopping` and the other operations of plain functions; `outbox.once`
            takes it.
    """

    job: BlockingJob


class JobsBackend(_BaseTaskBackend):  # type: ignore[misc]
    """A backend for the setting TASKS. A queue is a job type, "django.QUEUE"; with QUEUES=[] all are "django".

    OPTIONS are, each of them optional:
        store: the address of the store; that of JOBS_SERVICE_STORE by default.
        outbox: the alias of a database with the tables of the outbox. Tasks are enqueued by an INSERT on Django's
            connection to it, in the transaction that is open there.
        slots, max_attempts, ...: the options of the handler; see HandlerOptions.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    # Django makes a backend for each thread: those of the same options share a service.
    _services: ClassVar[dict[str, JobsService]] = {}

    # Enqueueing and looking: the methods that Django calls

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Add a job that runs a task; see Task.enqueue.

        Raises:
            InvalidTask (in django-tasks InvalidTaskError): the task is none for this backend.
            TypeError, ValueError: an argument that JSON cannot carry.
            JobsError: as JobsService.enqueue; with an outbox, as outbox.enqueue.
        """
        self.validate_task(task)
        run_after = None if task.run_after is None else task.run_after.timestamp()
        data = {
            "task": task.module_path,
            "args": _normalized(args),
            "kwargs": _normalized(kwargs),
            "using": {
                "priority": int(task.priority),
                "queue_name": task.queue_name,
                "run_after": run_after,
                "backend": self.alias,
            },
        }
        handler, found = self.jobs.handlers[self._type(task.queue_name)], _task(data)
        how: dict[str, Any] = {"priority": -int(task.priority), "run_at": run_after}
        if (database := self.options.get("outbox")) is None:
            job = self.jobs.enqueue(handler, data, **how)
            result = self._result(str(job.id), data, found, job)
        else:
            result = self._result(outbox.enqueue(connections[database], handler, data, **how), data, found)
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: Any) -> Any:
        """Return the result of a task as it is now; see Task.get_result.

        Raises:
            TaskResultDoesNotExist: there is no such job, or none any more.
        """
        found = self._found(result_id) or self._waiting(result_id) or self._found(result_id)  # it may have been moved
        if found is None:
            raise _exceptions.TaskResultDoesNotExist(result_id)
        return found

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return the problems of the OPTIONS, for `manage.py check`."""
        try:
            self.jobs  # noqa: B018 - it is made now
            database = self.options.get("outbox")
            if database is not None and database not in connections:
                raise InvalidSettings(f"outbox={shown(database)}: allowed are the aliases in DATABASES")
            if database is not None and (vendor := connections[database].vendor) not in (POSTGRESQL, SQLITE):
                raise InvalidSettings(
                    f"outbox={shown(database)}: it is {vendor}; the outbox is for PostgreSQL and SQLite"
                )
        except JobsError as error:
            return [checks.Error(f"TASKS[{self.alias!r}]: {error}", id="jobs_service.E001")]
        return []

    # The service

    @cached_property
    def jobs(self) -> JobsService:
        """The service, with a handler for each queue; all backends with the same options share it.

        Raises:
            InvalidSettings: an option that does not exist, or with a value that is not allowed.
        """
        key = json.dumps([sorted(self.queues), self.options], sort_keys=True, default=repr)
        return self._services.get(key) or self._services.setdefault(key, self._service())

    def _service(self) -> JobsService:
        options = {"max_history": MOST_HISTORY, **self.options}
        options.pop("outbox", None)
        jobs = JobsService(options.pop("store", None))
        for type in self._types():
            jobs.handler(type, **options)(run_task)
        return jobs

    def _type(self, queue: str) -> str:
        return f"django.{queue}" if self.queues else "django"

    def _types(self) -> list[str]:
        return [self._type(queue) for queue in sorted(self.queues) or ("",)]

    # Results

    def _found(self, id: Any) -> Any:
        for type in self._types():
            try:
                job = self.jobs.get(type, id)
            except (JobNotFound, InvalidJob):
                continue
            return self._result(id, job.data, _task(job.data), job)
        return None

    def _waiting(self, id: Any) -> Any:
        """Return the result of a task that waits in the outbox; None if there is none."""
        if (database := self.options.get("outbox")) is None or not str(id).isalnum():  # as no row is named
            return None
        sql = "select data from jobs_service_outbox where token = :token"
        data = first_value(connections[database], sql, {"token": str(id)})
        return None if data is None else self._result(id, data := json.loads(data), _task(data))

    def _result(self, id: str, data: dict[str, Any], task: Any, job: Job | None = None) -> Any:
        """Return a TaskResult; without a job, that of a task which is in the outbox."""
        history = () if job is None else job.history
        runs = [*takewhile(lambda event: event.kind is not HistoryKind.ADDED, history)]
        starts = [event for event in reversed(runs) if event.kind is HistoryKind.STARTED]
        added = next((event.at for event in history if event.kind is HistoryKind.ADDED), None)
        is_finished = job is not None and job.state is JobState.FINISHED
        result = _base.TaskResult(
            task=task,
            id=id,
            status=_Status.READY if job is None else _STATUSES[job.outcome or job.state],
            enqueued_at=_time(added),
            started_at=_time(starts[0].at if starts else None),
            last_attempted_at=_time(starts[-1].at if starts else None),
            finished_at=_time(runs[0].at if is_finished and runs else None),
            args=data["args"],
            kwargs=data["kwargs"],
            backend=task.backend,
            errors=[] if job is None else _errors(job),
            worker_ids=[event.detail for event in starts],
        )
        if job is not None and job.outcome is Outcome.SUCCEEDED:
            object.__setattr__(result, "_return_value", job.result)
        return result

    # Running

    def run(self, job: BlockingJob) -> Any:
        """Run the task of a job, with Django's signals, and return its result."""
        result = self._result(str(job.id), job.data, _task(job.data), job)
        _signals.task_started.send(type(self), task_result=result)
        context = [JobContext(task_result=result, job=job)] if result.task.takes_context else []
        try:
            value = _returned(result.task.call(*context, *result.args, **result.kwargs))
        except BaseException as error:
            if self._is_final(job, error):
                result.errors[:] = [_error(describe(error))]
                self._finished(result, _Status.FAILED)
            raise
        object.__setattr__(result, "_return_value", value)
        self._finished(result, _Status.SUCCESSFUL)
        return value

    def _is_final(self, job: BlockingJob, error: BaseException) -> bool:
        if isinstance(error, JobCanceled | Snooze):
            return False
        most = job.max_attempts or self.jobs.handlers[job.type].options.max_attempts
        return isinstance(error, Discard) or (most is not None and job.attempts >= most)

    def _finished(self, result: Any, status: Any) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", _time(time()))
        _signals.task_finished.send(type(self), task_result=result)


def run_task(job: BlockingJob, task: str, args: list[Any], kwargs: dict[str, Any], using: dict[str, Any]) -> Any:
    """Run the task of a job; the handler of all queues."""
    if not apps.ready:  # in a process for isolated functions
        django.setup()
    try:
        return _backend(using["backend"]).run(job)
    finally:
        connections.close_all()  # each job has a thread of its own, and no other thread can use its connections


def _backend(alias: str) -> JobsBackend:
    backend = _tasks.task_backends[alias]
    if not isinstance(backend, JobsBackend):
        raise ImproperlyConfigured(f"TASKS[{alias!r}] is {a_kind_of(backend)}, not a JobsBackend")
    return backend


def _task(data: Mapping[str, Any]) -> Any:
    """Return the task of a job's data, by the path of its function, as a worker finds it."""
    task, using = import_string(data["task"]), data["using"]
    if not isinstance(task, _base.Task):
        refused = f"{data['task']} is {a_kind_of(task)}, not a task: a worker finds a task by the name of its function"
        raise _InvalidTask(refused)
    return task.using(**{**using, "run_after": _time(using["run_after"])})


def _returned(value: Any) -> Any:
    try:
        return _normalized(value)
    except (TypeError, ValueError) as error:
        raise Discard(f"the task returned {shown(value)}, which is no result") from error  # another run has the same


def _time(at: float | None) -> datetime | None:
    """Return a time as Django has it: aware with USE_TZ, else local without a time zone."""
    return None if at is None else datetime.fromtimestamp(at, UTC if settings.USE_TZ else None)


def _errors(job: Job) -> list[Any]:
    error = JobError("JobCanceled", "the task was canceled") if job.outcome is Outcome.CANCELED else job.error
    return [] if error is None else [_error(error)]


def _error(error: JobError) -> Any:
    """Return a TaskError; the class is looked for in the traceback, as a job's error has its name only."""
    raised = _RAISED.findall(error.traceback)
    path = raised[-1] if raised else error.type
    if "." not in path:
        path = f"{'builtins' if hasattr(builtins, path) else errors.__name__}.{path}"
    return _base.TaskError(exception_class_path=path, traceback=error.traceback or f"{error.type}: {error.message}\n")


class _Workers:
    """The services of the backends by their aliases: `jobs-service serve jobs_service.django:worker.default`."""

    def __getattr__(self, alias: str) -> JobsService:
        if alias.startswith("__"):
            raise AttributeError(alias)
        try:
            django.setup()
            return _backend(alias).jobs
        except (ImproperlyConfigured, AttributeError) as error:  # or it would seem that there is no such backend
            raise InvalidSettings(str(error)) from error


worker: Final = _Workers()
