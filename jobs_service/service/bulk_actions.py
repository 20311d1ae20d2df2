"""Actions on all jobs that match a filter: counted, then done within a request, or as a job of their own.

There is one way in which they are done, `steps`: a page is read, and its jobs are changed in one transaction, in which
each is read again. It is left alone when it does not match any more, or has come into its state since the action was
asked for: so a job that fails again is not run again, and what was counted is what is changed. A request does steps
until its limit. The job holds what is to be done and how far it has come, and goes on where its process has died.

It has more than 600 lines because the steps, the request and the job that do them are one engine.
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

from jobs_service import json_data
from jobs_service.arguments import LATEST
from jobs_service.errors import (
    InvalidJob,
    JobCanceled,
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
    shown,
)
from jobs_service.layer.batch_bounds import TOO_MUCH
from jobs_service.layer.transaction import JobTransaction
from jobs_service.log import EventLog
from jobs_service.model import HistoryKind, Job, JobError, JobId, JobState, JobType, Outcome
from jobs_service.names import parsed
from jobs_service.names import shown as name_of
from jobs_service.redaction import Redaction
from jobs_service.runner.commands import COMMAND_TYPE
from jobs_service.service.actions import ACTIONS, changes, concerns
from jobs_service.service.selection import Filter, Selected, pages
from jobs_service.status import COUNTED, MEANT, Status

if TYPE_CHECKING:
    from jobs_service.model import RunningJob
    from jobs_service.service.service import JobsService

log = EventLog("jobs_service")

TYPE: Final = "bulk-actions"
"""The type of the jobs that are such actions."""
FIGURES: Final = ("read", "matched", "changed", "too_large")
"""What an action counts; the last are those that it leaves alone, because changed they would be too large."""
TIMEOUT: Final = 30.0
KEEP: Final = 7 * 86_400.0
MOST_COUNTED: Final = 2000
"""Jobs that are read to count those that match while somebody waits; a job of its own counts more."""
LONGEST: Final = 5.0
"""Seconds after which a request says how far it has come."""
READ_AT_ONCE: Final = 200
"""Jobs that are read at once, and changed in one transaction."""
_PAUSE: Final = 5.0
"""Seconds until bulk actions are looked for again, after the store could not be reached."""
_SEQ_BYTES: Final = 12
_LAST_OF_STAMP: Final = b"\xff\xff"


# What is asked for


@dataclass(frozen=True, slots=True)
class Moment:
    """When an action was asked for: from then on it does not look.

    Attributes:
        at: seconds since the epoch.
        seq: no job of the type that changed its state later has a lower one, whatever the clocks say.
        by_clock: whether `at` counts as well, because `seq` was read later.
    """

    at: float
    seq: bytes
    by_clock: bool = False

    @classmethod
    async def now(cls, service: JobsService, type: JobType) -> Self:
        """Return the present moment in the life of a type's jobs."""
        key = service._access.keys(type).watch_activity
        stamp = await service._access.read(lambda transaction: transaction.get(key))
        seq = bytes(_SEQ_BYTES) if stamp is None else stamp + _LAST_OF_STAMP
        return cls(service._context.sources.wall_time(), seq)

    @classmethod
    def of(cls, at: Any, seq: Any) -> Self:
        """Return what somebody has written of one.

        Raises:
            ValueError: it is none.
        """
        found = bytes.fromhex(str(seq))
        if len(found) != _SEQ_BYTES or not 0 <= float(at) <= LATEST:
            raise ValueError("a bulk action's moment has a time in seconds, and a seq of 24 hexadecimal digits")
        return cls(float(at), found)

    def includes(self, job: Job) -> bool:
        """Return whether a job was in its present state by then.

        Signs of life move the seq of a job that runs: for it counts when its run has begun.
        """
        if job.state is JobState.RUNNING or self.by_clock:
            history = job.history
            if history and history[0].at > self.at:
                return False
        return job.state is JobState.RUNNING or job.seq is None or job.seq <= self.seq


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants to be done.

    Attributes:
        action: of ACTIONS.
        type: of the jobs.
        wanted: which of them.
        moment: when that was.
        who: asks for it; empty for whoever is on this machine.
        counted: how many jobs that were; None where nobody has counted them.
    """

    action: str
    type: JobType
    wanted: Filter
    moment: Moment
    who: str = ""
    counted: int | None = None

    def concerns(self, job: Job) -> bool:
        """Return whether a job that matches, without what is secret, is changed (or counted)."""
        try:
            if job.state is JobState.UNREADABLE:
                return self.action == "count" or (self.action == "remove" and self.wanted.state == Status.UNREADABLE)
            return changes(self.action, job, self.moment.at) and self.moment.includes(job)
        except RecordDamaged:
            return False

    def is_meant(self, rules: Redaction, job: Job) -> bool:
        """Return whether a job, as it is stored, matches and is changed."""
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
    """Return what somebody wants to be done now, or at a moment before: see Asked.

    A retry without a state is about failed jobs: what has succeeded is run again by whoever says so.

    Raises:
        InvalidJob: nobody may have that done with many jobs at once.
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
    """How many jobs match.

    Attributes:
        matching: so many of those that were read.
        read: how many were read; 0 where the store knows the number.
        is_all: whether all jobs were read, or the number is known.
    """

    matching: int
    read: int
    is_all: bool


async def count(service: JobsService, asked: Asked) -> Counted:
    """Return how many jobs an action is about, reading MOST_COUNTED of them at most."""
    wanted = asked.wanted
    if wanted.needs_reading or wanted.prefix is not None or wanted.state == Status.UNREADABLE:
        return await _count(service, asked)
    counts = (await service.counts(asked.type)).get(asked.type)
    meant = COUNTED if wanted.state is None else MEANT[wanted.state]
    statuses = [each for each in meant if concerns(asked.action, each)]
    number = 0 if counts is None else sum(getattr(counts, each) for each in statuses)
    if number and Status.RUNNING in statuses and asked.action in ("cancel", "remove"):
        # No figure of the store has those that were asked to end already.
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
    """How far an action has come.

    Attributes:
        read: jobs that were looked at.
        matched: how many of them matched.
        changed: how many did still when they were to be changed.
        too_large: how many were left alone, because changed they would be more than the store takes.
        next: where the others are; None before the first step, and when there are none.
    """

    read: int = 0
    matched: int = 0
    changed: int = 0
    too_large: int = 0
    next: str | None = None


async def steps(
    service: JobsService, asked: Asked, done: Done, *, most: int | None = None, dry_run: bool = False
) -> AsyncGenerator[Done]:
    """Do what was asked for, and yield after each page how far that is.

    Args:
        service: of the jobs.
        asked: what.
        done: how far it had come before; it is kept up to date, also where a step fails.
        most: of jobs that match, all in all; None for all.
        dry_run: whether they are only counted, as by the action "count".

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
    """Do something with those of these jobs that are meant still, in as few transactions as take it.

    Args:
        service: that has them.
        asked: what.
        ids: of the jobs.
        rules: what is secret of the type's jobs.
        done: gets how many were changed, transaction by transaction.

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
        is_readable, due = True, {}
        try:
            job = await tx.get(asked.type, id)
            if not asked.is_meant(rules, job):
                continue
            due = {"run_at": asked.moment.at} if job.state is JobState.PENDING else {}
        except JobNotFound:
            continue
        except RecordDamaged:
            is_readable = False
            if asked.action != "remove" or asked.wanted.state != Status.UNREADABLE:
                continue
        if asked.action == "resubmit":
            await tx.resubmit(asked.type, id, **due)  # one that waits for another attempt is due now
        else:
            await tx.remove(asked.type, id, force=not is_readable)
        changed += 1
    return changed


# Within a request


async def act_on_some(
    service: JobsService, asked: Asked, limit: int, *, after: str | None = None, dry_run: bool = False
) -> Done:
    """Do something with jobs that match, up to a limit, or to a time that a request may take.

    Args:
        service: that has them.
        asked: what.
        limit: of those that match.
        after: `next` of the answer to a request before, which goes on with what that was asked for; None to begin.
        dry_run: whether they are only counted.

    Raises:
        JobsError: as the operations do, where nothing was changed before. Where something was, that is told, and who
            goes on from there is told what is wrong.
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
    """Return when the first of several requests was made, and where the one before has ended."""
    try:
        at, seq, place = after.split(".")
        return Moment.of(struct.unpack(">d", bytes.fromhex(at))[0], seq), place or None
    except (ValueError, struct.error):
        raise InvalidJob(f"after {shown(after)}: allowed is what `next` of the answer before has") from None


# As a job


_ASKED: Final = ("action", "type", "filter", "who", "asked", "bound", "counted")
"""What of a job's data says what was asked for; it never changes."""
_ID: Final = re.compile(r".+Z-([0-9a-f]{24})")


def _digest(data: Mapping[str, Any]) -> str:
    fixed = {name: data[name] for name in _ASKED if name in data}
    return hashlib.sha256(json_data.canonical(fixed)).hexdigest()[:24]


class BulkActions:
    """Adds bulk actions to the store, and runs those that are there.

    Args:
        service: of the store.
        ended: called with who has asked for an action, what it does, its id and how many jobs it has changed, when it
            has ended; None for a log event alone.
    """

    def __init__(self, service: JobsService, ended: Callable[[str, str, JobId, int], object] | None = None) -> None:
        self._service = service
        self._ended = ended
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
        """Add an action, and see that somebody runs it. One that was asked for twice is added once.

        Args:
            action: of ACTIONS.
            type: of the jobs.
            wanted: which of them.
            who: asks for it.
            moment: from which on jobs are left alone; None for now.
            counted: how many jobs it was about at that moment, if that is known.

        Returns:
            The id of its job.

        Raises:
            InvalidJob: nobody may have that done with many jobs at once.
        """
        what = await asked(self._service, action, type, wanted, who=who, moment=moment, counted=counted)
        data = {
            "action": action,
            "type": name_of(type),
            "filter": what.wanted.to_dict(),
            "who": who,
            "asked": what.moment.at,
            "bound": what.moment.seq.hex(),
            "counted": counted,
        }
        # Nobody can change what was asked for and keep the id. The same confirmation has the same one.
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
        except Exception as error:  # whatever somebody has written there ends this action, and no other
            log.warning("bulk_action_failed", id=job.id, error=str(error))
            failed = JobError(type(error).__name__, str(error)[:2000])
            await self._end(job, run, Outcome.FAILED, failed)
        else:
            await self._end(job, run, Outcome.SUCCEEDED)

    async def _end(self, job: RunningJob, run: _Run | None, outcome: Outcome, error: JobError | None = None) -> None:
        """End an action, and note with how many jobs it was done; who asked for it was noted when they did."""
        await job.finish(outcome=outcome, result=None if run is None else run.figures(), error=error)
        if run is not None and run.asked.action != "count":
            figures = run.figures()
            log.info("bulk_action_ended", id=job.id, action=run.asked.action, who=run.asked.who, **figures)
            if self._ended is not None:
                self._ended(run.asked.who, run.asked.action, job.id, figures["changed"])


class _Run:
    """One run of an action, which may go on where another one has ended.

    Attributes:
        asked: what it does.
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
            ValueError: its data is no bulk action, or not the one that was asked for; the message says why.
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
            # Somebody has added it by hand: it is about what was there then, and no later than it began.
            added = job.history[-1].at if job.history else service._context.sources.wall_time()
            began = data.setdefault("began", (await Moment.now(service, type)).seq.hex())
            moment = replace(Moment.of(data.get("asked", added), began), by_clock=True)
        who = data.get("who")
        what = await asked(service, data["action"], type, Filter.of(data["filter"]), who=str(who or ""), moment=moment)
        if is_new:
            data["digest"] = _digest(data)
            await job.update(data)
        return cls(service, job, what, data)

    def figures(self) -> dict[str, int]:
        """Return what was done."""
        return {name: getattr(self._done, name) for name in FIGURES}

    async def go(self) -> None:
        """Read all that may match, page by page, and change what does."""
        counts = (await self._service.counts(self.asked.type)).get(self.asked.type)
        meant = COUNTED if self.asked.wanted.state is None else MEANT[self.asked.wanted.state]
        total = 0 if counts is None else sum(getattr(counts, each, 0) for each in meant)
        async with aclosing(steps(self._service, self.asked, self._done)) as found:
            async for done in found:
                # Where it goes on, should this process die now; raises when somebody has canceled it.
                await self._job.update({**self._data, **self.figures(), "after": done.next})
                await self._job.progress(done.read, max(total, done.read), f"{done.changed} changed")


def _check_unchanged(job: RunningJob, data: Mapping[str, Any]) -> bool:
    """Refuse an action that is not what was asked for; return whether it was added by hand and begins now.

    Raises:
        ValueError: it is not.
    """
    made = _ID.fullmatch(job.id) if isinstance(job.id, str) else None
    digest = made[1] if made else data.get("digest")
    if digest is None:
        # Its id says nothing: nobody may have had it in between.
        if any(event.kind is not HistoryKind.ADDED for event in job.history[1:]):
            raise ValueError("somebody else has had this action before it began, and may have changed it; ask anew")
        return True
    if digest != _digest(data):
        raise ValueError("the data of this action was changed after it was asked for; ask anew")
    return False
