"""What programs and operators say of a type, one after the other: the latest change counts, wherever it is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from jobs_service import JobsError, JobsService, JobTransaction, JobType, NoTypeTimeout, RunningJob
from tests.simulation.calls import OK
from tests.simulation.drills.drill import LONG, Drill, all_ended

_TIMEOUTS: Final = (60.0, 90.0, LONG)
_KEPT: Final = (None, None, 100.0, 200.0)
_SECRETS: Final[tuple[tuple[str, ...], ...]] = (("a.b",), ("a.b", "error:message"), ())
_LATER: Final = 500.0


@dataclass
class _Said:
    """What a type is.

    Attributes:
        timeout: None where there is no such type.
        kept: how long jobs are kept, those that failed not and those that failed; None where nobody has said so.
        secret: fields; None where nobody has said so.
        paused: whether it is.
        of_program: what programs have declared last: the timeout, or none; what is kept, or none; and secret fields.
        is_removed: whether somebody has taken the type away, and nobody has made it since.
    """

    timeout: float | None = None
    kept: tuple[float | None, float | None] | None = None
    secret: tuple[str, ...] | None = None
    paused: bool = False
    of_program: tuple[float | None, tuple[float | None, float | None] | None] = (None, None)
    secret_of_program: tuple[str, ...] | None = None
    is_removed: bool = False

    def declare(self, timeout: float, kept: tuple[float | None, float | None], secret: tuple[str, ...] | None) -> None:
        """A program begins to run a handler: what it has not said before counts."""
        before = self.of_program
        if self.timeout is None or before[0] not in (None, timeout):
            self.timeout = timeout
        present = self.kept or (None, None)
        if kept != present and (self.kept is None or before[1] not in (None, kept)):
            self.kept = kept
        self.of_program, self.is_removed = (timeout, kept), False
        if secret is not None and (self.secret is None or self.secret_of_program != secret):
            self.secret = self.secret_of_program = secret

    def clear(self) -> None:
        """Somebody takes it away."""
        if self.timeout is not None:
            self.of_program, self.is_removed = (None, None), True
        self.timeout = None


async def say_what_a_type_is(drill: Drill) -> None:
    """Change types in every way, through one of two services: both know at once what each of them is."""
    random = drill.random
    said: dict[JobType, _Said] = {drill.type: _Said(), (drill.type, 1): _Said()}
    async with drill.client.process.service(supervise=random.random() < 0.3) as other:
        for _ in range(random.randint(6, 12)):
            type = random.choice([*said])
            step = _Step(drill, random.choice([drill.jobs, other]), type, said[type])
            what = random.choice([*_STEPS])
            await what(step)
            seen_by = random.choice([drill.jobs, other])
            for each in said:
                await _compare(drill, seen_by, each, said[each], what.__name__.strip("_"))
            types = [each for each in await seen_by.types() if each in said]
            if types != [each for each in sorted(said, key=str, reverse=True) if said[each].timeout is not None]:
                drill.complain(f"after {what.__name__}, there are {types}, and should be {said}")
    for type in said:
        await drill.jobs.resume(type)


@dataclass
class _Step:
    """One change.

    Attributes:
        drill: that it is part of.
        jobs: the service that is asked.
        type: that is changed.
        said: what it is.
    """

    drill: Drill
    jobs: JobsService
    type: JobType
    said: _Said

    async def do(self, name: str, *arguments: Any, **options: Any) -> None:
        """Do something to the type, by the service or in a transaction of several things."""
        if self.drill.random.random() < 0.5:
            await getattr(self.jobs, name)(self.type, *arguments, **options)
            return

        async def work(tx: JobTransaction) -> None:
            await getattr(tx, name)(self.type, *arguments, **options)

        await self.jobs.transact(work)


async def _set_timeout(step: _Step) -> None:
    step.said.timeout, step.said.is_removed = step.drill.random.choice(_TIMEOUTS), False
    await step.do("set_type_timeout", step.said.timeout)


async def _clear_timeout(step: _Step) -> None:
    await step.do("clear_type_timeout")
    step.said.clear()


async def _pause(step: _Step) -> None:
    step.said.paused = step.drill.random.random() < 0.5
    await step.do("pause" if step.said.paused else "resume")


async def _keep(step: _Step) -> None:
    random = step.drill.random
    step.said.kept = random.choice(_KEPT), random.choice(_KEPT)
    names = ("keep", "keep_failed")
    given = {name: each for name, each in zip(names, step.said.kept, strict=True) if each or random.random() < 0.5}
    await step.do("set_retention", **given)


async def _hide(step: _Step) -> None:
    step.said.secret = step.drill.random.choice(_SECRETS)
    await step.jobs.set_redaction(step.type, step.said.secret)


async def _run_handler(step: _Step) -> None:
    """A program with a handler starts, and ends."""
    random = step.drill.random
    service = step.drill.client.process.service(supervise=False)
    timeout, kept = random.choice(_TIMEOUTS), (random.choice(_KEPT), random.choice(_KEPT))
    secret = random.choice([None, *_SECRETS])
    options: dict[str, Any] = {} if secret is None else {"redact": list(secret)}
    service.handler(step.type, timeout=timeout, keep=kept[0], keep_failed=kept[1], **options)(_nothing)
    started = asyncio.Event()
    async with service:
        running = asyncio.create_task(service.run(started=started.set), name=f"{step.drill.type} runs")
        try:
            async with asyncio.timeout(step.drill.moment):
                await started.wait()
        finally:
            await all_ended([running], 0)
    step.said.declare(timeout, kept, secret)


async def _enqueue(step: _Step) -> None:
    """A program that has a handler, and does not run it, adds a job for it: that makes the type."""
    drill, said, random = step.drill, step.said, step.drill.random
    service = drill.client.process.service(supervise=False)
    timeout, secret = random.choice(_TIMEOUTS), random.choice([None, *_SECRETS])
    options: dict[str, Any] = {} if secret is None else {"redact": list(secret)}
    handler = service.handler(step.type, timeout=timeout, **options)(_nothing)
    name = f"{len(drill.run.calls.all)}"
    call = drill.client.begin("enqueue", step.type, name)

    async def enqueue(tx: JobTransaction) -> None:
        await tx.enqueue(handler, {"call": call.number}, id=name, delay=_LATER)

    is_told = None
    try:
        async with service:
            if random.random() < 0.5:
                await service.enqueue(handler, {"call": call.number}, id=name, delay=_LATER)
            else:
                await service.transact(enqueue)
        added = True
    except NoTypeTimeout as error:
        added, is_told = False, error
    drill.run.calls.end(call, OK if added else NoTypeTimeout.__name__, drill.client.version)
    if added == said.is_removed:
        drill.complain(f"a job was {'' if added else 'not '}enqueued ({is_told}) for {step.type!r}, which is {said}")
    if not added:
        return
    if said.timeout is None:
        said.timeout, said.of_program = timeout, (timeout, None)
    if secret is not None and said.secret is None:
        said.secret = said.secret_of_program = secret
    await drill.client.remove(step.type, name)


async def _add(step: _Step) -> None:
    """A job is added to a type that is there, and to no other one; who is not to take it does not."""
    drill, said = step.drill, step.said
    name = f"{len(drill.run.history.model.jobs)}"
    try:
        await drill.client.add(step.type, name)
        added = True
    except NoTypeTimeout:
        added = False
    if added != (said.timeout is not None):
        drill.complain(f"a job was {'' if added else 'not '}added to {step.type!r}, which is {said}")
    if not added:
        return
    taken = await drill.client.accept(step.type, timeout=0)
    if len(taken) != (not said.paused):
        drill.complain(f"of {step.type!r}, which is {said}, were taken {taken}")
    for job in taken:
        await drill.client.finish(job)
    with contextlib.suppress(JobsError):
        await drill.client.remove(step.type, name, force=True)


_STEPS: Final[tuple[Callable[[_Step], Awaitable[None]], ...]] = (
    _set_timeout,
    _clear_timeout,
    _pause,
    _keep,
    _hide,
    _run_handler,
    _run_handler,
    _enqueue,
    _enqueue,
    _add,
)


async def _compare(drill: Drill, jobs: JobsService, type: JobType, said: _Said, after: str) -> None:
    """Ask what a type is, in all the ways there are."""
    try:
        timeout: float | None = await jobs.get_type_timeout(type)
    except NoTypeTimeout:
        timeout = None
    kept, hidden = await jobs.get_retention(type), await jobs.get_redaction(type)
    all_hidden = (await jobs.redactions()).get(type)
    found: tuple[Any, ...] = timeout, (kept.keep, kept.keep_failed), hidden.paths, all_hidden and all_hidden.paths
    found += (await jobs.paused(type), (await jobs.queue_state(type)).paused)
    wanted: tuple[Any, ...] = said.timeout, said.kept or (None, None), said.secret or (), said.secret or None
    wanted += said.paused, said.paused
    if found != wanted:
        drill.complain(f"after {after}, {type!r} is {found}, not {wanted}: {said}")


async def _nothing(job: RunningJob, *, call: int = 0) -> None:
    """Do nothing."""
