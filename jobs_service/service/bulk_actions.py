"""Actions of people on jobs: on a single one, and on all that match a filter, in a request or as a background job.

docs/semantics.md has the table of actions and states; this module implements its cells.

Bulk actions use `steps`: read a page, then change its jobs in one transaction that reads each job again. It skips a job
that no longer matches, or that entered its state after the action was requested: a job that fails again is not retried
again, and the action changes the jobs that were counted. A request takes steps until its limit. A background job stores
the action and its progress, and resumes after the death of its process.

The module has more than 600 lines because the actions, and the requests and jobs that do them in steps, are one engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import struct
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from jobs_service import json_data, names
from jobs_service.arguments import LATEST
from jobs_service.errors import (
    InvalidJob,
    JobCanceled,
    JobChanged,
    JobNotFound,
    JobsError,
    JobTooLarge,
    NoTypeTimeout,
    RecordDamaged,
    ServiceClosed,
    StoreLost,
    SupervisorFailed,
    TransactionTooOld,
    WorkerConflict,
    job_name,
    shown,
)
from jobs_service.layer.batch_bounds import TOO_MUCH
from jobs_service.layer.keyspace import LAST_ORDER, SEQ_BYTES
from jobs_service.layer.transaction import JobTransaction
from jobs_service.log import EventLog
from jobs_service.model import HistoryKind, Job, JobError, JobId, JobState, JobType, Outcome, Removal
from jobs_service.model.job import COUNTED, ENDED, MEANT, Status, status_of
from jobs_service.names import parsed
from jobs_service.redaction import Redaction
from jobs_service.runner.commands import COMMAND_TYPE
from jobs_service.service.selection import Filter, Selected, pages

if TYPE_CHECKING:
    from jobs_service.model import RunningJob
    from jobs_service.service.service import JobsService

log = EventLog("jobs_service")

TYPE: Final = "bulk-actions"
"""The type of the jobs that run bulk actions."""
FIGURES: Final = ("read", "matched", "changed", "too_large")
"""Counters of an action; the last one counts jobs that it skips because the change would make them too large."""
TIMEOUT: Final = 30.0
KEEP: Final = 7 * 86_400.0
MOST_COUNTED: Final = 2000
"""Jobs that a count reads at most while a client waits; a background job reads all."""
LONGEST: Final = 5.0
"""Seconds after which a request stops and answers with its progress."""
READ_AT_ONCE: Final = 200
"""Jobs per page, and per transaction that changes them."""
_PAUSE: Final = 5.0
"""Seconds until the next search for bulk actions after the store was unavailable."""


# Requested actions


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a request for an action: the action ignores later state changes.

    Attributes:
        at: seconds since the epoch.
        seq: lower bound for the seq of every later state change of the type's jobs, independent of clocks.
        by_clock: whether `at` applies as well, because `seq` was read later.
    """

    at: float
    seq: bytes
    by_clock: bool = False

    @classmethod
    async def now(cls, service: JobsService, type: JobType) -> Self:
        """Return the present moment in the life of a type's jobs."""
        key = service._access.keys(type).watch_activity
        stamp = await service._access.read(lambda transaction: transaction.get(key))
        seq = bytes(SEQ_BYTES) if stamp is None else stamp + LAST_ORDER
        return cls(service.wall_time(), seq)

    @classmethod
    def of(cls, at: Any, seq: Any) -> Self:
        """Parse a moment from its written form.

        Raises:
            ValueError: the values are no moment.
        """
        found = bytes.fromhex(str(seq))
        if len(found) != SEQ_BYTES or not 0 <= float(at) <= LATEST:
            raise ValueError("a bulk action's moment has a time in seconds, and a seq of 24 hexadecimal digits")
        return cls(float(at), found)

    def includes(self, job: Job) -> bool:
        """Return whether a job was in its present state at this moment.

        Heartbeats move the seq of a running job, so the start of its run decides.
        """
        if job.state is JobState.RUNNING or self.by_clock:
            history = job.history
            if history and history[0].at > self.at:
                return False
        return job.state is JobState.RUNNING or job.seq is None or job.seq <= self.seq


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested action.

    Attributes:
        action: of ACTIONS.
        type: of the jobs.
        wanted: selects the jobs.
        moment: time of the request.
        who: the requester; empty for a local user.
        counted: number of jobs at that moment; None if they were not counted.
    """

    action: str
    type: JobType
    wanted: Filter
    moment: Moment
    who: str = ""
    counted: int | None = None

    def concerns(self, job: Job) -> bool:
        """Return whether the action changes (or counts) a redacted job that matches."""
        try:
            if job.state is JobState.UNREADABLE:
                return self.action == "count" or (self.action == "remove" and self.wanted.state == Status.UNREADABLE)
            return changes(self.action, job, self.moment.at) and self.moment.includes(job)
        except RecordDamaged:
            return False

    def is_meant(self, rules: Redaction, job: Job) -> bool:
        """Return whether a job, as stored, matches and is to be changed."""
        return self.wanted.holds(rules.job(job), self.moment.at) and self.concerns(job)


async def asked(
    service: JobsService,
    action: str,
    type: JobType,
    wanted: Filter,
    *,
    who: str = "",
    moment: Moment | None = None,
    counted: int | None = None,
) -> Asked:
    """Return an action requested now, or at an earlier moment: see Asked.

    A retry without a state applies to failed jobs: succeeded jobs run again only if the filter names their state.

    Raises:
        InvalidJob: the action is not allowed in bulk.
    """
    if action not in ACTIONS:
        raise InvalidJob(f"action {shown(action)}: allowed are {', '.join(ACTIONS)}")
    if action == "resubmit" and type == COMMAND_TYPE:
        raise InvalidJob("commands are run again one by one")
    if action == "resubmit" and wanted.state is None:
        wanted = replace(wanted, state=Status.FAILED.value)
    return Asked(action, type, wanted, moment or await Moment.now(service, type), who, counted)


# Counting


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of matching jobs.

    Attributes:
        matching: number of matching jobs.
        read: number of jobs read; 0 where the store's counters suffice.
        is_all: whether the number is complete.
    """

    matching: int
    read: int
    is_all: bool


async def count(service: JobsService, asked: Asked) -> Counted:
    """Return the number of jobs that an action applies to, reading MOST_COUNTED jobs at most."""
    wanted = asked.wanted
    if wanted.needs_reading or wanted.prefix is not None or wanted.state == Status.UNREADABLE:
        return await _count(service, asked)
    counts = (await service.counts(asked.type)).get(asked.type)
    meant = COUNTED if wanted.state is None else MEANT[wanted.state]
    statuses = [each for each in meant if concerns(asked.action, each)]
    number = 0 if counts is None else sum(getattr(counts, each) for each in statuses)
    if number and Status.RUNNING in statuses and asked.action in ("cancel", "remove"):
        # The store's counters do not tell running jobs that are canceled already from the others.
        running = replace(asked, action="count", wanted=Filter(state=Status.RUNNING.value))
        number -= (await _count(service, running, lambda job: job.cancel)).matching
    return Counted(max(number, 0), 0, True)


async def _count(service: JobsService, asked: Asked, also: Callable[[Job], bool] = lambda job: True) -> Counted:
    matching = read = 0
    looks = max(MOST_COUNTED // READ_AT_ONCE, 1)  # short pages, too, are pages that were read
    async with aclosing(_pages(service, asked, None, None, also)) as found:
        async for page in found:
            looks -= 1
            read += page.read
            matching += len(page.jobs)
            if page.next is not None and not looks:
                return Counted(matching, read, False)
    return Counted(matching, read, True)


def _pages(
    service: JobsService, asked: Asked, after: str | None, most: int | None, also: Callable[[Job], bool]
) -> AsyncGenerator[Selected]:
    return pages(
        service,
        asked.type,
        asked.wanted,
        read=READ_AT_ONCE,
        most=most,
        after=after,
        now=asked.moment.at,
        meant=lambda job: asked.concerns(job) and also(job),
    )


# Doing


@dataclass(slots=True)
class Done:
    """The progress of an action.

    Attributes:
        read: jobs read.
        matched: how many matched.
        changed: how many still matched when they were changed.
        too_large: how many were skipped, because the change would exceed the store's limits.
        next: cursor of the next page; None before the first step and after the last page.
    """

    read: int = 0
    matched: int = 0
    changed: int = 0
    too_large: int = 0
    next: str | None = None


async def steps(
    service: JobsService, asked: Asked, done: Done, *, most: int | None = None, dry_run: bool = False
) -> AsyncGenerator[Done]:
    """Do an action, and yield the progress after each page.

    Args:
        service: of the jobs.
        asked: the action.
        done: the earlier progress; updated in place, also where a step fails.
        most: limit of matching jobs in total; None for all.
        dry_run: whether to count only, like the action "count".

    Raises:
        JobsError: as the operations do.
    """
    async with aclosing(_pages(service, asked, done.next, most, lambda job: True)) as found:
        async for page in found:
            ids = [job.id for job in page.jobs]
            if ids and asked.action != "count" and not dry_run:
                await change_all(service, asked, ids, page.rules, done)
            done.read += page.read
            done.matched += len(ids)
            done.next = page.next
            yield done


async def change_all(service: JobsService, asked: Asked, ids: list[JobId], rules: Redaction, done: Done) -> None:
    """Apply an action to the listed jobs that still match, in as few transactions as possible.

    Args:
        service: of the jobs.
        asked: the action.
        ids: of the jobs.
        rules: the type's redaction.
        done: its counters grow with each transaction.

    Raises:
        JobsError: as the operations do.
    """
    try:
        done.changed += await service.transact(partial(_change, asked, ids, rules))
        return
    except (JobTooLarge, *TOO_MUCH) as error:
        if len(ids) == 1:
            if isinstance(error, TransactionTooOld):  # the store was slow: the job is as it was
                raise
            log.warning("bulk_job_too_large", action=asked.action, type=asked.type, id=ids[0], error=str(error))
            done.too_large += 1
            return
    middle = len(ids) // 2
    await change_all(service, asked, ids[:middle], rules, done)
    await change_all(service, asked, ids[middle:], rules, done)


async def _change(asked: Asked, ids: list[JobId], rules: Redaction, tx: JobTransaction) -> int:
    changed = 0
    for id in ids:
        try:
            job = await tx.get(asked.type, id)
            if not asked.is_meant(rules, job):
                continue
        except JobNotFound:
            continue
        except RecordDamaged:
            if asked.action != "remove" or asked.wanted.state != Status.UNREADABLE:
                continue
            await tx.remove(asked.type, id, force=True)
        else:
            if asked.action != "resubmit":
                await tx.remove(asked.type, id)
            elif job.state is JobState.PENDING:  # it waits for another attempt
                await tx.resubmit(asked.type, id, run_at=asked.moment.at)
            else:
                await tx.resubmit(asked.type, id)
        changed += 1
    return changed


# Within a request


async def act_on_some(service: JobsService, asked: Asked, limit: int, *, after: str | None, dry_run: bool) -> Done:
    """Apply an action to matching jobs, up to a limit and to the time limit of a request.

    Args:
        service: of the jobs.
        asked: the action.
        limit: of matching jobs.
        after: `next` of the previous answer, to continue its action; None to begin.
        dry_run: whether to count only.

    Raises:
        JobsError: as the operations do, if nothing was changed before. Otherwise the progress is returned, and the next
            request raises the error if it persists.
    """
    began = time.monotonic()
    done = Done()
    if after is not None:
        moment, done.next = _position(after)
        asked = replace(asked, moment=moment)
    try:
        async with aclosing(steps(service, asked, done, most=limit, dry_run=dry_run)) as found:
            async for _ in found:
                if time.monotonic() - began > LONGEST:
                    break
    except JobsError:
        if not done.changed:
            raise
        done.next = done.next or ""
    if done.next is not None:
        at = struct.pack(">d", asked.moment.at).hex()
        done.next = f"{at}.{asked.moment.seq.hex()}.{done.next}"
    return done


def _position(after: str) -> tuple[Moment, str | None]:
    """Return the moment of the first of several requests, and the cursor at which the previous one ended."""
    try:
        at, seq, place = after.split(".")
        return Moment.of(struct.unpack(">d", bytes.fromhex(at))[0], seq), place or None
    except (ValueError, struct.error):
        raise InvalidJob(f"after {shown(after)}: allowed is what `next` of the answer before has") from None


# As a job


_ASKED: Final = ("action", "type", "filter", "who", "asked", "bound", "counted")
"""Fields of a job's data that define the action; they never change."""
_ID: Final = re.compile(r".+Z-([0-9a-f]{24})")


def _digest(data: Mapping[str, Any]) -> str:
    fixed = {name: data[name] for name in _ASKED if name in data}
    return hashlib.sha256(json_data.canonical(fixed)).hexdigest()[:24]


class BulkActions:
    """Adds bulk actions to the store, and runs them: the engine of one service, `JobsService.bulk_actions`.

    Args:
        service: of the store.

    Attributes:
        ended: called at the end of an action with the requester, the action's name, its id and the number of changed
            jobs.
    """

    def __init__(self, service: JobsService) -> None:
        self.ended: list[Callable[[str, str, JobId, int], object]] = []
        self._service = service
        self._task: asyncio.Task[None] | None = None

    async def add(
        self,
        action: str,
        type: JobType,
        wanted: Filter,
        who: str,
        *,
        moment: Moment | None = None,
        counted: int | None = None,
    ) -> JobId:
        """Add an action and start running actions. An action that was requested twice is added once.

        Args:
            action: of ACTIONS.
            type: of the jobs.
            wanted: selects the jobs.
            who: the requester.
            moment: later state changes exclude a job; None for now.
            counted: number of jobs at that moment, if known.

        Returns:
            The id of its job.

        Raises:
            InvalidJob: the action is not allowed in bulk.
        """
        what = await asked(self._service, action, type, wanted, who=who, moment=moment, counted=counted)
        data = {
            "action": action,
            "type": names.shown(type),
            "filter": what.wanted.to_dict(),
            "who": who,
            "asked": what.moment.at,
            "bound": what.moment.seq.hex(),
            "counted": counted,
        }
        # The id contains a digest of the action, so a changed action needs another id. The same confirmation has the
        # same id.
        id = f"{datetime.fromtimestamp(what.moment.at, UTC):%Y-%m-%dT%H:%M:%SZ}-{_digest(data)}"

        async def write(tx: JobTransaction) -> None:
            try:
                await tx.get_type_timeout(TYPE)
            except NoTypeTimeout:
                await tx.set_type_timeout(TYPE, TIMEOUT)
                await tx.set_retention(TYPE, keep=KEEP, keep_failed=KEEP)
            await tx.add(TYPE, id, {**data, "after": None, **dict.fromkeys(FIGURES, 0)}, if_exists="ignore")

        await self._service.transact(write)
        self.start()
        return id

    def start(self) -> None:
        """Run present and future actions until `close`."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run_on(), name="bulk actions")

    async def close(self) -> None:
        """Release the running action, and run no more."""
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
            run = await _Run.of(self._service, job)
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
        except Exception as error:  # an invalid record ends this action, and no other
            log.warning("bulk_action_failed", id=job.id, error=str(error))
            failed = JobError(type(error).__name__, str(error)[:2000])
            await self._end(job, run, Outcome.FAILED, failed)
        else:
            await self._end(job, run, Outcome.SUCCEEDED)

    async def _end(self, job: RunningJob, run: _Run | None, outcome: Outcome, error: JobError | None = None) -> None:
        """Finish an action's job, and log its figures; the request itself was logged earlier."""
        await job.finish(outcome=outcome, result=None if run is None else run.figures(), error=error)
        if run is not None and run.asked.action != "count":
            figures = run.figures()
            log.info("bulk_action_ended", id=job.id, action=run.asked.action, who=run.asked.who, **figures)
            for tell in self.ended:
                tell(run.asked.who, run.asked.action, job.id, figures["changed"])


class _Run:
    """One run of an action, which may continue an earlier run.

    Attributes:
        asked: the action.
    """

    def __init__(self, service: JobsService, job: RunningJob, asked: Asked, data: dict[str, Any]) -> None:
        self._service = service
        self._job = job
        self._data = data
        self.asked = asked
        self._done = Done(next=data["after"], **{name: data[name] for name in FIGURES})

    @classmethod
    async def of(cls, service: JobsService, job: RunningJob) -> Self:
        """Return the run of a job of the type.

        Raises:
            ValueError: the job's data is no bulk action, or not the requested one; the message says why.
            JobsError: as the operations do.
        """
        data = job.data if isinstance(job.data, dict) else {}
        if missing := [name for name in ("action", "type", "filter") if name not in data]:
            raise ValueError(f"the data of a bulk action has action, type and filter; here is no {missing[0]}")
        data = {"after": None, **dict.fromkeys(FIGURES, 0), **data}
        is_new = _check_unchanged(job, data)
        type: JobType = parsed(data["type"])
        if "bound" in data:
            moment = Moment.of(data["asked"], data["bound"])
        else:
            # The job was added by hand: its moment is the time when it was added, and no later than the start of its
            # first run.
            added = job.history[-1].at if job.history else service.wall_time()
            began = data.setdefault("began", (await Moment.now(service, type)).seq.hex())
            moment = replace(Moment.of(data.get("asked", added), began), by_clock=True)
        who = data.get("who")
        what = await asked(service, data["action"], type, Filter.of(data["filter"]), who=str(who or ""), moment=moment)
        if is_new:
            data["digest"] = _digest(data)
            await job.update(data)
        return cls(service, job, what, data)

    def figures(self) -> dict[str, int]:
        """Return the counters."""
        return {name: getattr(self._done, name) for name in FIGURES}

    async def go(self) -> None:
        """Read all jobs that may match, page by page, and change the matching ones."""
        counts = (await self._service.counts(self.asked.type)).get(self.asked.type)
        meant = COUNTED if self.asked.wanted.state is None else MEANT[self.asked.wanted.state]
        total = 0 if counts is None else sum(getattr(counts, each, 0) for each in meant)
        async with aclosing(steps(self._service, self.asked, self._done)) as found:
            async for done in found:
                # The place to resume, should this process die now; raises if the action was canceled.
                await self._job.update({**self._data, **self.figures(), "after": done.next})
                await self._job.progress(done.read, max(total, done.read), f"{done.changed} changed")


def _check_unchanged(job: RunningJob, data: Mapping[str, Any]) -> bool:
    """Refuse an action that differs from the requested one; return whether it was added by hand and begins now.

    Raises:
        ValueError: the action has changed, or may have.
    """
    made = _ID.fullmatch(job.id) if isinstance(job.id, str) else None
    digest = made[1] if made else data.get("digest")
    if digest is None:
        # The id has no digest, so no other worker may have held the job in between.
        if any(event.kind is not HistoryKind.ADDED for event in job.history[1:]):
            raise ValueError("somebody else has had this action before it began, and may have changed it; ask anew")
        return True
    if digest != _digest(data):
        raise ValueError("the data of this action was changed after it was asked for; ask anew")
    return False


# The jobs that an action changes


ACTIONS: Final[Mapping[str, str]] = {"resubmit": "retry", "cancel": "cancel", "remove": "remove", "count": "count"}
"""Bulk actions with their names for people; "count" changes nothing."""


def concerns(action: str, status: Status) -> bool:
    """Return whether an action changes jobs that a filter finds in this state.

    Unreadable jobs are removed only if the filter names their state.
    """
    if action == "resubmit":
        return status in ENDED or status is Status.RETRYING
    if action == "cancel":
        return status not in ENDED and status is not Status.UNREADABLE
    return True


def changes(action: str, job: Job, now: float) -> bool:
    """Return whether an action changes a job that a filter finds; a canceled job is not canceled again."""
    return concerns(action, status_of(job, now)) and not (job.cancel and action in ("cancel", "remove"))


# Actions of people on a single job


@dataclass(frozen=True, slots=True)
class Seen:
    """The version of a job that a client saw before it requested a change.

    Attributes:
        seq: of the job.
        started: start of its run, if it was running: heartbeats move the seq of a running job, and are no reason to
            refuse a change. None if unknown: then the seq must be the same.
    """

    seq: bytes
    started: float | None = None

    @classmethod
    def of(cls, seq: str, started: str = "") -> Self:
        """Parse the version in a request.

        Args:
            seq: hexadecimal, as in a job's JSON.
            started: a number, or empty.

        Raises:
            InvalidJob: an invalid value.
        """
        try:
            found = bytes.fromhex(seq)
            if len(found) != SEQ_BYTES:
                raise ValueError
            return cls(found, float(started) if started else None)
        except ValueError:
            refused = f"seq {shown(seq)}: it is none; allowed is what a job has as its seq, 24 hexadecimal digits"
            raise InvalidJob(refused) from None

    def check(self, job: Job) -> None:
        """Raise JobChanged if the job has changed since."""
        is_same_run = job.state is JobState.RUNNING and self.started is not None and started_at(job) == self.started
        if job.seq != self.seq and not is_same_run:
            name, state = job_name(job.type, job.id), job.state if job.outcome is None else job.outcome
            refused = f"job {name} has changed since it was looked at: it is {state.value} now; nothing was done"
            raise JobChanged(refused, type=job.type, id=job.id)


def started_at(job: Job) -> float | None:
    """Return the start of a job's present run, seconds since the epoch; None if the job is not known to run."""
    if job.state is not JobState.RUNNING:
        return None
    return next((event.at for event in job.history if event.kind is HistoryKind.STARTED), None)


async def cancel(service: JobsService, type: JobType, id: JobId, seen: Seen | None = None) -> Removal | None:
    """Cancel a job: ask a running one to end, remove a waiting one.

    Args:
        service: of the job.
        type, id: the job.
        seen: the version that the job must still have; None for any version.

    Returns:
        The result of `remove`; None if the job has ended already, and stays with its result.

    Raises:
        JobNotFound: there is no such job.
        JobChanged: the job has another version.
        RecordDamaged: its record cannot be read.
    """

    async def change(tx: JobTransaction) -> Removal | None:
        job = await _as_seen(tx, type, id, seen)
        return None if job.state is JobState.FINISHED else await tx.remove(type, id)

    return await service.transact(change)


async def remove(service: JobsService, type: JobType, id: JobId, seen: Seen | None, *, force: bool = False) -> Removal:
    """Remove a job like JobsService.remove, if it has not changed; raises like that and `cancel`."""
    if seen is None:
        return await service.remove(type, id, force=force)

    async def change(tx: JobTransaction) -> Removal:
        await _as_seen(tx, type, id, seen)
        return await tx.remove(type, id, force=force)

    return await service.transact(change)


async def resubmit(service: JobsService, type: JobType, id: JobId, seen: Seen | None, **changes: Any) -> Job:
    """Have a job run again like JobsService.resubmit, if it has not changed; raises like that and `cancel`."""
    if seen is None:
        return await service.resubmit(type, id, **changes)

    async def change(tx: JobTransaction) -> Job:
        await _as_seen(tx, type, id, seen)
        return await tx.resubmit(type, id, **changes)

    return await service.transact(change)


async def retry(service: JobsService, type: JobType, id: JobId, seen: Seen | None = None) -> Job | None:
    """Do with one job what a bulk action does: an ended job runs again, one that waits for another attempt is due now.

    Returns:
        The job; None if it was in another state, and stays as it is. Raises like `cancel`.
    """
    now = service.wall_time()

    async def change(tx: JobTransaction) -> Job | None:
        job = await _as_seen(tx, type, id, seen)
        if not concerns("resubmit", status_of(job, now)):
            return None
        return await tx.resubmit(type, id, **({"run_at": now} if job.state is JobState.PENDING else {}))

    return await service.transact(change)


async def run_now(service: JobsService, type: JobType, id: JobId, seen: Seen | None) -> bool:
    """Make a pending job due now; return whether it was pending. Raises like `cancel`."""

    now = service.wall_time()

    async def change(tx: JobTransaction) -> bool:
        job = await _as_seen(tx, type, id, seen)
        if job.state is JobState.PENDING:
            await tx.resubmit(type, id, run_at=now)
        return job.state is JobState.PENDING

    return await service.transact(change)


async def _as_seen(tx: JobTransaction, type: JobType, id: JobId, seen: Seen | None) -> Job:
    job = await tx.get(type, id)
    if seen is not None:
        seen.check(job)
    return job
