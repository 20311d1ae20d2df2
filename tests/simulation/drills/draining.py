"""Handlers whose process is left: each has its grace in its own way, and others have at once what has not ended."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

from jobs_service import BlockingJob, JobsService, JobType, Outcome, RunningJob
from jobs_service.testing import EPOCH
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import LogBook, log_of, notice, opened, running
from tests.simulation.drills.leavings import BACKOFF, SAME, Leaving, Leavings

_SLOTS: Final = 30
_MOST: Final = 5
"""Jobs that run as the process is left."""
_LATE: Final = "late"
_LEFT: Final = "handler_ignores_cancellation"


async def leave_handlers(drill: Drill) -> None:
    """Leave a service whose handlers run, and have another one run what is given back."""
    drain = _Drain(drill)
    try:
        await drain.play()
    finally:
        drain.let_go()


class _Drain:
    def __init__(self, drill: Drill) -> None:
        random = drill.random
        self._drill = drill
        self._types: dict[str, JobType] = {letter: (drill.type, letter) for letter in "apc"}
        self._graces: dict[str, float] = {letter: random.choice([0.5, 2.0, 4.0]) for letter in "apc"}
        if random.random() < 0.2:
            self._graces["a"] = 0.0
        self._leavings = leavings = Leavings(drill, self._graces)
        cases = leavings.some(_MOST)
        self._cases = {case.id: case for case in cases}
        self._log: LogBook = log_of(drill)
        self._seconds = random.choice([2.0, 2.0, 60.0])
        # As many as run, or one more: then those wait that have slots, too.
        self._cap = random.choice([None, None, len(cases) + 1, len(cases) + 2])
        self._had: dict[tuple[JobType, str], tuple[float, int]] = {}
        self._heir_since = 0.0

    def _register(self, service: JobsService, *, is_heir: bool) -> None:
        for letter, type in self._types.items():
            options: dict[str, Any] = {"timeout": self._seconds, "backoff": BACKOFF, "jitter": 0.0, "max_attempts": 3}
            options |= {"grace": self._graces[letter], "interval": 600.0}
            options |= {"slots": 1 if letter == "c" and not is_heir else _SLOTS}
            options |= {"continuous": lambda job: "continuous" in str(job.id)}
            if is_heir:

                @service.handler(type, **options)
                async def have(job: RunningJob) -> Any:
                    self._had[job.type, str(job.id)] = self._drill.time(), job.attempts
                    return {"heir": 1}
            elif letter == "p":

                @service.handler(type, **options)
                def think(job: BlockingJob) -> Any:
                    return self._cases[str(job.id)].think(job)
            else:

                @service.handler(type, **options)
                async def run(job: RunningJob) -> Any:
                    if job.type == self._types["c"]:
                        return await self._leavings.one_of_several(job)
                    if job.id == _LATE:
                        return self._take_late(job)
                    return await self._cases[str(job.id)].run(job)

    def _take_late(self, job: RunningJob) -> Any:
        """A job that was added as the process was left may have begun before that was noticed, and not later."""
        self._had[job.type, str(job.id)] = self._drill.time(), job.attempts
        if self._leavings.has_begun and self._drill.time() > self._leavings.at:
            self._drill.complain(f"{job.id!r} begins, and its process has been left")
        return {"heir": 1}

    def let_go(self) -> None:
        """Have nobody wait for the moment at which the process is left, also where that never comes."""
        self._leavings.leaving.set()

    async def play(self) -> None:
        drill, random = self._drill, self._drill.random
        service, heir = [drill.client.process.service(supervise=False) for _ in range(2)]
        self._register(service, is_heir=False)
        self._register(heir, is_heir=True)
        comes_early = random.random() < 0.5
        async with opened(drill, service), opened(drill, heir), AsyncExitStack() as stack:
            async with running(drill, service, 2 * max(self._graces.values()), max_jobs=self._cap) as work:
                await self._add()
                if comes_early:
                    await stack.enter_async_context(running(drill, heir, 0.0))
                    self._heir_since = drill.time()
                await self._leave(work)
            if not comes_early:
                self._heir_since = drill.time()
                await stack.enter_async_context(running(drill, heir, 0.0))
            last = max((case.again for case in self._cases.values() if case.again is not None), default=0.0)
            await asyncio.sleep(max(0.0, last - drill.time()) + 2 * drill.moment)
            await self._leavings.all_are_over()
            await self._check()

    async def _add(self) -> None:
        """Have all of them run, and another one wait for a slot, where there is only one."""
        drill = self._drill
        for letter, type in self._types.items():
            await drill.make_type(self._seconds, type)
            for case in self._cases.values():
                if case.letter == letter:
                    await drill.jobs.add(type, case.id)
        # The second one never gets the slot of the first.
        for id in "12":
            await drill.jobs.add(self._types["c"], id)
            await drill.settle()
        for case in self._cases.values():
            if case.began is None:
                case.wrong("does not run, and there are slots")

    async def _leave(self, work: asyncio.Task[None]) -> None:
        drill, random = self._drill, self._drill.random
        await asyncio.sleep(random.choice([0.0, 0.0, random.uniform(0.0, self._seconds)]))
        comes_before = random.random() < 0.5
        if comes_before:  # it may be accepted just now
            await drill.jobs.add(self._types["a"], _LATE)
            await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 3 * drill.latency)]))
        await drill.pass_turns()
        self._leavings.begin()
        began = drill.time()
        work.cancel()
        removals = [asyncio.create_task(self._remove(case)) for case in self._cases.values() if case.removed_after]
        if not comes_before and random.random() < 0.7:
            await drill.pass_turns()
            await drill.jobs.add(self._types["a"], _LATE)
        if random.random() < 0.3:  # it shortens nothing
            await asyncio.sleep(random.uniform(0.0, 1.0))
            work.cancel()
        longest = 2 * max(self._graces.values()) + drill.moment
        await asyncio.wait([work], timeout=began + longest - drill.time())
        if not work.done():
            drill.complain(f"handlers were to end within {longest:.3f} s, and go on")
            return
        took = drill.time() - began
        await asyncio.gather(*removals)
        wanted = self._leavings.seconds_until_all_have_left()
        # The end of a handler is written in a request or two.
        if not wanted - SAME <= took <= wanted + drill.moment:
            drill.complain(f"handlers were left, and that took {took:.3f} s, not {wanted:.3f}")

    async def _remove(self, case: Leaving) -> None:
        await asyncio.sleep(case.removed_after)
        case.removed = self._drill.time()
        await self._drill.client.remove(self._types[case.letter], case.id)
        case.told_by = self._drill.time() + notice(self._drill)

    async def _check(self) -> None:
        """Each job is what its handler has made of it, or has run elsewhere as soon as it could."""
        drill = self._drill
        for case in self._cases.values():
            case.check_asked()
            type = self._types[case.letter]
            found = await drill.jobs.get(type, case.id)
            history = [(event.kind.value, event.detail) for event in found.history]
            had = self._had.get((type, case.id))
            if case.again is None:
                if had is not None or found.outcome is not case.outcome or found.result != case.result:
                    case.wrong(f"is {found!r} with {found.result!r}, not {case.outcome}, {case.result!r}; {had}")
            else:
                self._check_again(case, had)
                if found.outcome is not Outcome.SUCCEEDED or found.result != {"heir": 1}:
                    case.wrong(f"has run elsewhere, and is {found!r} with {found.result!r}")
                if case.detail is not None and ("stopped", case.detail) not in history:
                    case.wrong(f"was given back as {case.detail!r}, and has the history {history}")
            said = [(fields["why"], fields["seconds"]) for _, fields in self._log.of(type, _LEFT) if _is(fields, case)]
            wanted = [case.ignored] if case.ignored is not None else []
            if said != wanted and self._graces[case.letter]:
                case.wrong(f"is said to ignore its cancellation: {said}, not {wanted}")
        for id in ("2", _LATE):
            type = self._types["c" if id == "2" else "a"]
            if (id != _LATE or drill.job(id, type) is not None) and self._had.get((type, id), (0.0, 0))[1] != 1:
                drill.complain(f"{id!r} has waited, and was run elsewhere as {self._had.get((type, id))}")
        self._check_late()

    def _check_late(self) -> None:
        """Who has come as the process was left was taken by it at once, or never."""
        late = self._drill.job(_LATE, self._types["a"])
        stopped = [] if late is None else [at for kind, at, _ in late.notes.history if kind == "stopped"]
        noticed = self._leavings.at + EPOCH + self._drill.client.process.clock.ahead + SAME + 12 * self._drill.latency
        if any(at > noticed for at in stopped):
            self._drill.complain(f"a process was left by {noticed:.3f}, and gives a job back at {stopped}")

    def _check_again(self, case: Leaving, had: tuple[float, int] | None) -> None:
        assert case.again is not None
        since = max(case.again, self._heir_since)
        if had is None or not since - SAME <= had[0] <= since + self._drill.moment or had[1] != case.attempts:
            case.wrong(f"was to run at {since:.3f} as number {case.attempts}, and has run at {had}")


def _is(fields: Any, case: Leaving) -> bool:
    return bool(fields["id"] == case.id)
