"""Handlers that ignore that they are to end: their jobs are given up, and their slots stay taken until they end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import JobNotFound, JobsService, JobType, Outcome, RunningJob
from jobs_service.settings import HandlerSettings
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import check_uses, log_of, notice, opened, running

_LIMIT: Final = 0.7
_LONG: Final = 4.0
"""Seconds of a grace in which somebody may remove a job whose time is over."""
_SAME: Final = 0.02
_BACKOFF: Final = 600.0


@dataclass
class _Deaf:
    """One job whose handler does not end when it is asked to, or is held.

    Attributes:
        id, how: of it, and why it is asked to end; "held" for one that would do so.
        began: when; None before.
        asked: when it was asked, each time.
        told_by: until when it must have been asked.
        end: set when its handler may end; `over` when it has.
    """

    id: str
    how: str
    began: float | None = None
    asked: list[float] = field(default_factory=list)
    told_by: float = 0.0
    end: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_late(self) -> bool:
        """Whether it takes longer than it may."""
        return self.how in ("late", "fails", "late and removed")


async def give_up_handlers(drill: Drill) -> None:
    """Have handlers go on after their grace, and change slots meanwhile; others get their slots when they end."""
    deaf = _DeafHandlers(drill)
    service = drill.client.process.service(supervise=False)
    deaf.register(service)
    async with opened(drill, service), running(drill, service, 4 * deaf.grace, max_jobs=deaf.cap):
        try:
            await deaf.play(service)
        finally:
            deaf.let_go()


class _DeafHandlers:
    def __init__(self, drill: Drill) -> None:
        random = drill.random
        self._drill = drill
        self.grace: float = random.choice([0.0, 0.5, _LONG])
        self._slots = random.randint(1, 3)
        self.cap = random.choice([None, self._slots])
        self._other: JobType = (drill.type, "other")
        kinds = ["removed", "removed", "forced", "late", "fails"]
        # It is told of its removal within its grace.
        kinds += ["late and removed"] * 2 if self.grace == _LONG and drill.moment + notice(drill) < _LONG else []
        hows = [random.choice(kinds) for _ in range(self._slots)]
        for number in range(1, self._slots):
            if random.random() < 0.4:
                hows[number] = "held"
        self._all = [_Deaf(f"{number} {how}", how) for number, how in enumerate(hows)]
        self._ran: list[tuple[JobType, str, int]] = []
        self._log = log_of(drill)

    def register(self, service: JobsService) -> None:
        """Make functions the handlers of both types."""
        options: dict[str, Any] = {"grace": self.grace, "timeout": 60.0, "backoff": _BACKOFF}
        options["time_limit"] = self._drill.random.choice([None, 300.0])

        @service.handler(self._drill.type, slots=self._slots, **options)
        async def run(job: RunningJob) -> Any:
            return await self._run(job)

        @service.handler(self._other, slots=2, **options)
        async def other(job: RunningJob) -> Any:
            return await self._run(job)

    async def _run(self, job: RunningJob) -> Any:
        drill = self._drill
        deaf = next((each for each in self._all if each.id == job.id), None)
        if deaf is None or deaf.began is not None:  # one that has waited, or was given back
            self._ran.append((job.type, str(job.id), job.attempts))
            return None
        deaf.began = drill.time()
        while not deaf.end.is_set():
            try:
                await deaf.end.wait()
            except asyncio.CancelledError:
                deaf.asked.append(drill.time())
                if deaf.how == "held":
                    raise
        deaf.over.set()
        if drill.random.random() < 0.5:
            raise ValueError("far too late")
        return {"far too": "late"}

    @property
    def _taken(self) -> int:
        return sum(each.began is not None and not each.over.is_set() for each in self._all if each.how != "held")

    def let_go(self) -> None:
        """Have all of them end."""
        for each in self._all:
            each.end.set()

    async def play(self, service: JobsService) -> None:
        """Have them all run, ask them to end, change slots, and let them end."""
        drill = self._drill
        for each in self._all:
            options: dict[str, Any] = {"time_limit": _LIMIT} if each.is_late else {}
            options |= {"max_attempts": 1} if each.how == "fails" else {}
            await drill.jobs.enqueue(drill.type, id=each.id, **options)
        await drill.settle()
        for name in ("w", "x"):
            await drill.jobs.enqueue(drill.type, id=name)
        if self.cap is not None:
            await drill.jobs.enqueue(self._other, id="o")
        for each in self._all:
            await self._ask(each)
        # Its end is written in a request or two.
        await asyncio.sleep(notice(drill) + self.grace + drill.moment)
        await self._check_given_up(service)
        await self._change_slots(service)
        await self._let_end(service)

    async def _ask(self, deaf: _Deaf) -> None:
        if deaf.began is None:
            self._drill.complain(f"{deaf} does not run, and there are {self._slots} slots")
        if deaf.how in ("removed", "forced", "late and removed"):
            await self._drill.client.remove(self._drill.type, deaf.id, force=deaf.how == "forced")
            deaf.told_by = self._drill.time() + notice(self._drill)

    async def _check_given_up(self, service: JobsService) -> None:
        drill = self._drill
        for each in self._all:
            if each.how == "held":
                if each.asked:
                    drill.complain(f"{each} was asked to end, and nobody has a reason for it")
                continue
            first = each.asked[0] if each.asked else 0.0
            if each.is_late and abs(first - (each.began or 0.0) - _LIMIT) > _SAME:
                drill.complain(f"{each} was to be told after {_LIMIT} s that its time is over")
            if each.told_by and first > each.told_by:
                drill.complain(f"{each} was told late that it is to end")
            # Once more as it is given up: without a grace that may be the same moment.
            times = [first, first + self.grace] if self.grace or len(each.asked) > 1 else [first]
            if len(each.asked) != len(times) or abs(each.asked[-1] - times[-1]) > _SAME:
                drill.complain(f"{each} was to be asked to end at {times}")
            await self._check_job(each)
        why = {
            "removed": "canceled",
            "late and removed": "canceled",
            "forced": "taken",
            "late": "overtime",
            "fails": "overtime",
        }
        said = {
            str(fields["id"]): (fields["why"], fields["seconds"])
            for _, fields in self._log.of(drill.type, "handler_ignores_cancellation")
        }
        wanted = {each.id: (why[each.how], self.grace) for each in self._all if each.how in why}
        if said != wanted:
            drill.complain(f"it is said that these ignore their cancellation: {said}, not {wanted}")
        if self._ran:
            drill.complain(f"{self._ran} have run, and all slots are taken: {self._all}")
        self._check_uses(service, self._slots, self._slots)

    def _check_uses(self, service: JobsService, slots: int, taken: int) -> None:
        check_uses(self._drill, service, {self._drill.type: (slots, taken), self._other: (2, 0)})

    async def _check_job(self, deaf: _Deaf) -> None:
        """The job is what it is, although its handler goes on or has said something since."""
        drill = self._drill
        try:
            found = await drill.jobs.get(drill.type, deaf.id)
        except JobNotFound:
            if deaf.how != "forced":
                drill.complain(f"{deaf} was given up, and there is no such job")
            return
        error = None if found.error is None else found.error.type
        canceled = (Outcome.CANCELED, None)
        ends = {"removed": canceled, "late and removed": canceled, "late": (None, "TimeoutError")}
        wanted = ends.get(deaf.how, (Outcome.FAILED, "TimeoutError"))
        if (found.outcome, error) != wanted or found.result is not None or found.attempts != 1:
            drill.complain(f"{deaf} was given up, and is {found!r}, {error}, after {found.attempts} attempts")

    async def _change_slots(self, service: JobsService) -> None:
        """With more slots, who waits gets them; with fewer, those are asked who are not deaf."""
        drill = self._drill
        slots = drill.random.choice([0, self._slots - 1, self._slots, self._slots + 1])
        if drill.random.random() < 0.5:
            service.configure(drill.type, slots=slots)
        else:
            handlers = {str(drill.type): HandlerSettings(slots=slots)}
            service.reload(service.settings.model_copy(update={"handlers": handlers}))
        held = [each for each in self._all if each.how == "held"]
        asked = min(len(held), max(0, self._slots - slots))
        await drill.settle()
        if sum(len(each.asked) for each in held) != asked:
            drill.complain(f"of {self._slots} slots there are {slots}; {asked} of {held} were to be asked to end")
        ran = {id for _, id, _ in self._ran}
        # A place of the cap, or a slot, is free as soon as one that was held has left it.
        may_run = slots > self._slots - asked and (self.cap is None or asked > 0)
        if {"w", "x"} <= ran if not may_run else not {"w", "x"} <= ran:
            drill.complain(f"there are {slots} slots, {self._taken} are deaf, {held} held, and {ran} have run")
        if self.cap is not None and (("o" in ran) != (asked > 0)):
            drill.complain(f"there are {self.cap} places, {asked} have become free, and {ran} have run")
        self._check_uses(service, slots, self._slots - asked)

    async def _let_end(self, service: JobsService) -> None:
        drill = self._drill
        for each in drill.random.sample(self._all, len(self._all)):
            each.end.set()
            await asyncio.sleep(drill.some_time())
        service.configure(drill.type, slots=2)
        await drill.settle()
        await drill.settle()
        wanted = {"w", "x", *(["o"] if self.cap is not None else [])}
        wanted |= {each.id for each in self._all if each.how == "held" and each.asked}
        if {id for _, id, _ in self._ran} != wanted or any(attempts != 1 for _, _, attempts in self._ran):
            drill.complain(f"all may run, and {self._ran} have, not {wanted}")
        self._check_uses(service, 2, 0)
        for each in self._all:
            if each.how != "held":
                await self._check_job(each)
