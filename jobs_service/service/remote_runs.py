"""Runs of handlers in other processes: what their runners ask of a server, by types, ids and locks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from jobs_service import run_data
from jobs_service.arguments import check_keep, check_seconds, json_of
from jobs_service.errors import JobsError
from jobs_service.layer import running_jobs
from jobs_service.layer.declared_settings import Declared
from jobs_service.layer.enqueueing import Enqueueable
from jobs_service.layer.key_parts import pack_priority
from jobs_service.layer.running_jobs import LockStatus, RunReport
from jobs_service.model import UNSET, JobError, JobId, JobType, Outcome, Priority, RunningJob
from jobs_service.model.type_state import Retention
from jobs_service.redaction import Redaction
from jobs_service.runner.handler import Handler
from jobs_service.runner.schedule import Cron, Every, Missed
from jobs_service.runner.service_access import EndCall, Held
from jobs_service.runner.ticker import Done, Periodic
from jobs_service.service.local_access import LocalAccess
from jobs_service.service.store_access import StoreAccess

_HEAD: Final = 500
"""Approximate bytes of a job's record beside its worker's data."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a handler's run, or another attempt.

    Attributes:
        id, lock: the job.
        end: "finish" for the end; "crash" for another attempt, which counts; "stop" for one that does not.
        outcome, result, error: of the end; UNSET and None for no result and no error.
        reason: why, in words.
        run_at: the earliest time of the next attempt, seconds since the epoch; None for at once.
        asked: priority and time of a run that the handler itself has asked for; None for none.
        max_history: history events to keep; None for all.
        crashes, attempts: the count of crashes to store, None for the counted one, and the change of the attempts.
        anew: whether the earlier attempts do not count either.
    """

    id: JobId
    lock: bytes
    end: Literal["finish", "crash", "stop"]
    outcome: Outcome = Outcome.SUCCEEDED
    result: Any = UNSET
    error: JobError | None = None
    reason: str = ""
    run_at: float | None = None
    asked: tuple[Priority, float | None] | None = None
    max_history: int | None = None
    crashes: int | None = None
    attempts: int = 0
    anew: bool = False


class RemoteRuns:
    """The operations of runners in other processes.

    Args:
        access: of the service.
        runs: the runner's access to it.
    """

    def __init__(self, access: StoreAccess, runs: LocalAccess) -> None:
        self._access = access
        self._runs = runs

    async def declare(
        self,
        type: JobType,
        timeout: float,
        keep: float | None,
        keep_failed: float | None,
        secrets: Sequence[str] | None,
        *,
        may_change: bool,
        may_show: bool,
    ) -> tuple[Declared, Redaction | None]:
        """Make a type where it is missing, and set what its handler declares.

        Args:
            type: of the jobs.
            timeout, keep, keep_failed: seconds; see JobsService.set_type_timeout and set_retention.
            secrets: paths of secret fields; None for no declaration.
            may_change: whether settings of an existing type may change.
            may_show: whether fields may cease to be secret.

        Returns:
            The settings of the type now, and its redaction if one was declared.
        """
        kept = Retention(check_keep("keep", keep), check_keep("keep_failed", keep_failed))
        secret = None if secrets is None else Redaction(secrets)
        wanted = Declared(check_seconds(timeout), kept)
        return await self._runs.declare(
            self._access.keys(type), wanted, secret, may_change=may_change, may_show=may_show
        )

    async def alive(
        self, type: JobType, held: Sequence[tuple[JobId, bytes]], *, renew: bool
    ) -> Sequence[LockStatus | None]:
        """Return the state of each id's lock.

        Args:
            type: of the jobs.
            held: their ids and locks.
            renew: whether this is a heartbeat of the jobs as well.
        """
        places: list[Held] = [(self._access.place(type, id), lock) for id, lock in held]
        if renew:
            return await self._runs.beat(places)
        found, _ = await self._runs.look(self._access.keys(type), places, watched=True)
        return found

    async def healthy(self, type: JobType, id: JobId, lock: bytes) -> RunningJob | Exception:
        """Note that a run is healthy; return the job, or the error of this."""
        place = self._access.place(type, id)
        noted: asyncio.Future[RunningJob | Exception] = asyncio.get_running_loop().create_future()
        self._runs.note_healthy((place, lock), noted.set_result, 0)
        return await noted

    async def end_all(self, type: JobType, ends: Sequence[RunEnd], size: int) -> list[Exception | None]:
        """End several runs, each as if alone; return the error of each, None for a successful one.

        Args:
            type: of the jobs.
            ends: at most so many as fit into a transaction.
            size: bytes of the results and errors.
        """
        asked = [self._call_or_error(type, each) for each in ends]
        calls = [each for each in asked if not isinstance(each, JobsError)]
        done: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()

        def ended(errors: Sequence[Exception | None]) -> None:
            if not done.done():
                done.set_result(errors)

        if calls:
            self._access.check_open()
            self._runs.end_all(calls, ended, size + _HEAD * len(calls))
        errors = iter(await done if calls else ())
        return [each if isinstance(each, JobsError) else next(errors) for each in asked]

    async def count_due(self, type: JobType, limit: int, max_priority: Priority | None) -> int:
        """Return how many jobs could run now, up to a limit and a priority."""
        most = None if max_priority is None else pack_priority(max_priority)
        return await self._runs.count_due(self._access.keys(type), limit, most)

    async def tick(
        self,
        type: JobType,
        data: Any,
        schedule: tuple[str, str] | float,
        missed: str,
        overlap: bool,
        timeout: float,
        most: int,
        seen: float | None,
    ) -> Done:
        """Add the jobs of a periodic handler that are due.

        Args:
            type, data: of the jobs.
            schedule: a cron expression and its time zone, or the seconds of a period.
            missed, overlap: see JobsService.every.
            timeout: the activity timeout of a type that is made, in seconds.
            most: limit of added jobs.
            seen: the last tick that the runner knows; None for none.
        """
        times = Cron(*schedule) if isinstance(schedule, tuple) else Every(schedule)
        handler = cast(Handler[Any, Any], _Elsewhere(type, check_seconds(timeout), data))
        return await self._runs.tick(Periodic(handler, times, Missed(missed), overlap), most, seen)

    def _call_or_error(self, type: JobType, end: RunEnd) -> EndCall | JobsError:
        try:
            return self._call(type, end)
        except JobsError as error:  # an invalid result or error concerns its own run alone
            return error

    def _call(self, type: JobType, end: RunEnd) -> EndCall:
        """Return the operation by which a runner in this process would end the run.

        Raises:
            JobsError: the store cannot hold the result or the error.
        """
        place = self._access.place(type, end.id)
        if end.end == "stop":
            return running_jobs.stop, place, (end.lock, end.run_at, end.max_history, end.reason, end.anew)
        error = None if end.error is None else run_data.error_json(end.error)
        report = RunReport(
            json_of(type, end.id, end.result), error, end.reason, end.max_history, end.crashes, end.attempts
        )
        if end.end == "crash":
            asked = None if end.asked is None else (pack_priority(end.asked[0]), end.asked[1])
            return running_jobs.crash, place, (end.lock, report, end.run_at, asked)
        return running_jobs.finish, place, (end.lock, None, end.outcome, report)


class _Elsewhere(Enqueueable[Any, Any]):
    """A handler of another process."""

    def __init__(self, type: JobType, timeout: float, data: Any) -> None:
        self.type = type
        self._timeout = timeout
        self._data = data

    @property
    def timeout(self) -> float:
        """The activity timeout of the type when it is made, in seconds."""
        return self._timeout

    def data(self, args: Any) -> Any:
        """Return the data of its jobs."""
        return self._data
