"""Bulk actions: something is done with all jobs that match a filter, on the server, as a job of its own.

The job holds what is to be done and how far it has come, so it goes on where it was when its process dies. Each job
that matches is read again in the transaction that changes it, and left alone when it does not match any more, or when
something has happened to it since the action was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import (
    JobCanceled,
    JobsError,
    NoTypeTimeout,
    RecordDamaged,
    ServiceClosed,
    StoreLost,
    SupervisorFailed,
    WorkerConflict,
)
from jobs_service.http.audit import Audit
from jobs_service.http.bulk import change_all
from jobs_service.layer.transaction import JobTransaction
from jobs_service.log import EventLog
from jobs_service.model import Job, JobError, JobState, Outcome
from jobs_service.names import parsed, shown
from jobs_service.redaction import Redaction
from jobs_service.runner.commands import COMMAND_TYPE
from jobs_service.service.filters import Filter

if TYPE_CHECKING:
    from jobs_service import JobId, JobsService, JobType, RunningJob

log = EventLog("jobs_service.http")

TYPE: Final = "bulk-actions"
"""The type of these jobs."""
ACTIONS: Final = {
    "resubmit": "retry",
    "cancel": "cancel",
    "remove": "remove",
    "count": "count",
}
"""What can be done, and what it is called."""
FIGURES: Final = ("read", "matched", "changed", "too_large")
"""What an action counts; the last are those that it leaves alone, because changed they would be too large."""
TIMEOUT: Final = 30.0
KEEP: Final = 7 * 86_400.0
MOST_COUNTED: Final = 2000
"""Jobs that are read to count those that match while somebody waits; a job of its own counts more."""
_READ_AT_ONCE: Final = 200
_CHANGED_AT_ONCE: Final = 50
_PAUSE: Final = 5.0
"""Seconds until bulk actions are looked for again, after the store could not be reached."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many jobs match.

    Attributes:
        matching: so many of those that were read.
        read: how many were read; 0 where the store knows the number.
        is_all: whether all jobs were read, or the number is known.
    """

    matching: int
    read: int
    is_all: bool


async def count(service: JobsService, type: JobType, wanted: Filter) -> Counted:
    """Return how many jobs match, reading MOST_COUNTED of them at most."""
    if not wanted.needs_reading and not wanted.prefix:
        counts = (await service.counts(type)).get(type)
        number = 0 if counts is None else getattr(counts, wanted.state) if wanted.state else counts.jobs
        return Counted(number, 0, True)
    now = time.time()
    matching = read = 0
    after: str | None = None
    for _ in range(max(MOST_COUNTED // _READ_AT_ONCE, 1)):  # short pages, too, are pages that were read
        page = await service.page(
            type, state=wanted.state or None, prefix=wanted.prefix or None, limit=_READ_AT_ONCE, after=after
        )
        hidden = await service.get_redaction(type)
        read += len(page.jobs)
        matching += sum(wanted.holds(hidden.job(job), now) for job in page.jobs)
        after = page.next
        if after is None:
            return Counted(matching, read, True)
    return Counted(matching, read, False)


def check_action(action: str, type: JobType) -> None:
    """Raise ValueError for what nobody may have done with many jobs at once; the message says what."""
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is none of {', '.join(ACTIONS)}")
    if action == "resubmit" and type == COMMAND_TYPE:
        raise ValueError("commands are run again one by one")


class BulkActions:
    """Adds bulk actions to the store, and runs those that are there.

    Args:
        service: of the store.
        audit: where it is noted how many jobs each of them has changed; None for log events alone.
    """

    def __init__(self, service: JobsService, audit: Audit | None = None) -> None:
        self._service = service
        self._audit = Audit(None) if audit is None else audit
        self._task: asyncio.Task[None] | None = None

    async def add(self, action: str, type: JobType, wanted: Filter, who: str) -> JobId:
        """Add an action, and see that somebody runs it.

        Args:
            action: of ACTIONS.
            type: of the jobs.
            wanted: which of them.
            who: asks for it.

        Returns:
            The id of its job.
        """
        now = time.time()
        id = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}-{secrets.token_hex(3)}"
        data = {"action": action, "type": shown(type), "filter": wanted.to_dict(), "who": who, "asked": now}

        async def write(tx: JobTransaction) -> None:
            try:
                await tx.get_type_timeout(TYPE)
            except NoTypeTimeout:
                await tx.set_type_timeout(TYPE, TIMEOUT)
                await tx.set_retention(TYPE, keep=KEEP, keep_failed=KEEP)
            await tx.add(TYPE, id, {**data, "after": None, **dict.fromkeys(FIGURES, 0)})

        await self._service.transact(write)
        self.start()
        return id

    def start(self) -> None:
        """Run the actions that are there, and those that come, until `close`."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run_on(), name="bulk actions")

    async def close(self) -> None:
        """Give back what runs, and run nothing more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run_on(self) -> None:
        while True:
            try:
                job = await self._service.accept(TYPE)
                if job is not None:
                    await self._run(job)
            except (ServiceClosed, StoreLost, SupervisorFailed):
                return
            except JobsError as error:
                log.warning("bulk_action_interrupted", error=str(error))
                await asyncio.sleep(_PAUSE)

    async def _run(self, job: RunningJob) -> None:
        run = None
        try:
            run = _Run(self._service, job)
            await run.go()
        except JobCanceled:
            await self._end(job, run, Outcome.CANCELED)
        except WorkerConflict:
            return
        except asyncio.CancelledError:
            with contextlib.suppress(JobsError):
                await asyncio.shield(job.release())
            raise
        except ServiceClosed:
            raise
        except Exception as error:  # whatever somebody has written there ends this action, and no other
            log.warning("bulk_action_failed", id=job.id, error=str(error))
            failed = JobError(type(error).__name__, str(error)[:2000])
            await self._end(job, run, Outcome.FAILED, failed)
        else:
            await self._end(job, run, Outcome.SUCCEEDED)

    async def _end(self, job: RunningJob, run: _Run | None, outcome: Outcome, error: JobError | None = None) -> None:
        """End an action, and note with how many jobs it was done; who asked for it was noted when they did."""
        await job.finish(outcome=outcome, result=run and run.result(), error=error)
        if run is not None and run.action != "count":
            self._audit.changed("", "", f"bulk {run.action} ended", TYPE, job.id, run.result()["changed"])


def _added(job: RunningJob) -> float:
    """Return when a job was added, as far as its history says so."""
    return job.history[-1].at if job.history else time.time()


class _Run:
    """One run of an action, which may go on where another one has ended.

    Attributes:
        action: of ACTIONS.
    """

    def __init__(self, service: JobsService, job: RunningJob) -> None:
        self._service = service
        self._job = job
        data = job.data if isinstance(job.data, dict) else {}
        if missing := [name for name in ("action", "type", "filter") if name not in data]:
            raise ValueError(f"the data of a bulk action has action, type and filter; here is no {missing[0]}")
        self._data: dict[str, Any] = {"after": None, **dict.fromkeys(FIGURES, 0), **data}
        self.action: str = self._data["action"]
        self._type: JobType = parsed(self._data["type"])
        check_action(self.action, self._type)  # whoever may add jobs may have added this one
        self._wanted = Filter.from_dict(self._data["filter"])
        # One that somebody has added by hand was asked for when it was added.
        self._asked = float(self._data.setdefault("asked", _added(job)))
        self._hidden = Redaction()

    def result(self) -> dict[str, Any]:
        """Return what was done."""
        return {name: self._data[name] for name in FIGURES}

    async def go(self) -> None:
        """Read all that may match, page by page, and change what does."""
        counts = (await self._service.counts(self._type)).get(self._type)
        state = self._wanted.state
        total = 0 if counts is None else getattr(counts, state) if state else counts.jobs
        while True:
            page = await self._service.page(
                self._type,
                state=state or None,
                prefix=self._wanted.prefix or None,
                limit=_READ_AT_ONCE,
                after=self._data["after"],
            )
            self._hidden = await self._service.get_redaction(self._type)
            matching = [job.id for job in page.jobs if self._matches(self._hidden, job)]
            self._data["read"] += len(page.jobs)
            self._data["matched"] += len(matching)
            if self.action != "count":
                is_meant = partial(self._matches, self._hidden)
                for at in range(0, len(matching), _CHANGED_AT_ONCE):
                    part = matching[at : at + _CHANGED_AT_ONCE]
                    done = await change_all(self._service, self._type, self.action, part, is_meant)
                    self._data["changed"] += done.changed
                    self._data["too_large"] += done.too_large
            self._data["after"] = page.next
            # Where it goes on, should this process die now; raises when somebody has canceled it.
            await self._job.update(self._data)
            read = self._data["read"]
            await self._job.progress(read, max(total, read), f"{self._data['changed']} changed")
            if page.next is None:
                return

    def _matches(self, hidden: Redaction, job: Job) -> bool:
        try:
            if job.history and job.history[0].at > self._asked:
                return False
        except RecordDamaged:
            return False
        if self.action == "resubmit" and job.state is not JobState.FINISHED:
            return False
        if self.action == "cancel" and job.state is JobState.FINISHED:
            return False
        return self._wanted.holds(hidden.job(job), self._asked)
