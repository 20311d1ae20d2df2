"""Handlers that end in every way that there is, all at the same time: what becomes of each job is known exactly."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from jobs_service import BlockingJob, JobNotFound, JobsService, JobType, Outcome, RunningJob
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.fates import Fates
from tests.simulation.drills.handling import check_uses, count, log_of, notice, opened, running
from tests.simulation.drills.plain_fates import POLL
from tests.simulation.drills.verdicts import Case, Judge

_LONGEST: Final = 30.0
"""Seconds after which all cases are over."""

_MOST: Final = 11
"""Cases of one drill, beside those that are always there."""

_ALWAYS: Final = ("is removed", "raises a group of errors", "raises a group of requests")

_SLOTS: Final = 40
_MOMENT: Final = 0.05
_LOGGED: Final = (
    "job_crashed",
    "job_failed",
    "job_taken_over",
    "end_not_written",
    "result_not_stored",
    "handler_failed_after_end",
    "handler_ignores_cancellation",
    "heartbeat_failed",
)


async def end_in_every_way(drill: Drill) -> None:
    """Have jobs run by handlers that return, raise, are late, are removed, end their jobs themselves, and so on."""
    await _Ends(drill).play()


class _Ends:
    def __init__(self, drill: Drill) -> None:
        choose = drill.random.choice
        self._drill = drill
        self._options: dict[str, Any] = {
            "max_attempts": choose([1, 2, 3, None]),
            "backoff": choose([0.3, 0.5, 1.0]),
            "jitter": choose([0.0, 0.1, 1.0]),
            "health_threshold": choose([0.5, 1.0]),
            "grace": choose([0.5, 2.0]),
            "time_limit": choose([None, 3.0]),
            "max_history": choose([2, 5, 20, 20]),
        }
        self._judge = Judge(drill, self._options)
        self._types: dict[bool, JobType] = {False: drill.type, True: (drill.type, "plain")}
        self._cases = self._some_cases()
        self._active = 0

    def _some_cases(self) -> dict[str, Case]:
        drill = self._drill
        cases = Fates(self._judge).cases()
        always = [case for case in cases if case.id in _ALWAYS]
        chosen = [*always, *drill.random.sample([case for case in cases if case not in always], _MOST)]
        for case in chosen:
            if "removed" in case.id:
                case.options = {"time_limit": 600.0}
        return {case.id: case for case in chosen}

    async def play(self) -> None:
        drill = self._drill
        service = drill.client.process.service(supervise=drill.random.random() < 0.4)
        log = log_of(drill)
        self._register(service)
        async with opened(drill, service):
            lost = await self._lose_one()
            async with running(drill, service, 2 * self._options["grace"]):
                await self._add(service)
                await asyncio.gather(*(self._remove(case) for case in self._cases.values() if "removed" in case.id))
                await count(drill, drill.type)
                await self._wait()
                await drill.settle()
                check_uses(drill, service, dict.fromkeys(self._types.values(), (_SLOTS, 0)))
                await count(drill, drill.type)
            for case in self._cases.values():
                type = self._types[case.in_thread]
                said = [(event, fields) for event, fields in log.of(type, *_LOGGED) if fields.get("id") == case.id]
                self._check_said(case, said)
                found = None
                with contextlib.suppress(JobNotFound):
                    found = await drill.jobs.get(type, case.id)
                self._judge.check(case, found, [(event, fields.get("attempt")) for event, fields in said])
            await self._check_lost(lost)

    def _register(self, service: JobsService) -> None:
        options = {**self._options, "slots": _SLOTS, "timeout": 60.0}

        @service.handler(self._types[False], **options)
        async def run(job: RunningJob, args: dict[str, Any]) -> Any:
            if job.id not in self._cases:
                self._drill.complain(f"{job.id!r} runs, which has no attempt left")
                return None
            case, begun = self._begin(job)
            try:
                value = await case.script(case, job)
            except BaseException as error:
                self._end(case, begun, error=error)
                raise
            self._end(case, begun, value)
            return value

        @service.handler(self._types[True], **options)
        def think(job: BlockingJob, args: dict[str, Any]) -> Any:
            case, begun = self._begin(job)
            try:
                value = case.script(case, job)
            except BaseException as error:
                self._end(case, begun, error=error)
                raise
            self._end(case, begun, value)
            return value

    def _begin(self, job: Any) -> tuple[Case, int]:
        case = self._cases[job.id]
        self._active += 1
        self._judge.begins(case, job)
        return case, case.runs

    def _end(self, case: Case, begun: int, value: Any = None, error: BaseException | None = None) -> None:
        self._active -= 1
        if case.runs != begun:
            return  # it has given its job back, and that runs again
        if error is None:
            self._judge.returned(case, value)
        else:
            self._judge.raised(case, error)

    async def _add(self, service: JobsService) -> None:
        """Enqueue the jobs, some of them later."""
        drill = self._drill
        for case in self._cases.values():
            type, options = self._types[case.in_thread], dict(case.options)
            if case.data is not None:
                await drill.jobs.add(type, case.id, case.data)
                continue
            if drill.random.random() < 0.2:
                later = drill.random.choice([0.3, 1.0])
                case.earliest = drill.time() + later
                options["delay" if drill.random.random() < 0.5 else "run_at"] = later
            if "run_at" in options:
                options["run_at"] += drill.client.process.clock.wall_time()
            case.latest = max(drill.time(), case.earliest) + 2 * drill.moment
            await drill.client.enqueue(service.handlers[type], lambda call: {"call": call}, id=case.id, **options)

    async def _remove(self, case: Case) -> None:
        """Remove a job that runs; its handler is told soon."""
        drill, type = self._drill, self._types[case.in_thread]
        await case.begun.wait()
        await asyncio.sleep(drill.random.choice([0.0, 0.03, 0.3]))
        case.forced = "force" in case.id
        case.removed = drill.time()
        await drill.client.remove(type, case.id, force=case.forced)
        removed = drill.time()
        told = removed + notice(drill) + (POLL if case.in_thread else 0.0)
        await asyncio.sleep(told - removed + _MOMENT)
        if case.asked is None or case.asked > told:
            self._judge.wrong(case, f"was removed at {removed:.3f}, and its handler was told at {case.asked}")

    async def _wait(self) -> None:
        """Wait until all cases are over: none has to run again, and no handler goes on."""
        drill = self._drill
        until = drill.time() + _LONGEST
        while drill.time() < until:
            due = [case for case in self._cases.values() if case.due]
            if not due and not self._active:
                return
            for case in due:
                if drill.time() > case.latest + 2 * drill.moment:
                    self._judge.wrong(case, f"has not run since {case.latest:.3f}")
                    case.due = False
            await asyncio.sleep(0.3)
        drill.complain(f"{self._active} handlers go on")

    def _check_said(self, case: Case, said: list[tuple[str, Any]]) -> None:
        """What the log says beside is so."""
        backoff, jitter = self._options["backoff"], self._options["jitter"]
        for event, fields in said:
            if event == "job_crashed" and not backoff - 0.01 <= fields["retry_in"] <= 8 * backoff * (1 + jitter) + 0.01:
                self._judge.wrong(case, f"is said to run again in {fields['retry_in']} s")
            if event == "handler_ignores_cancellation":
                told = (fields["why"], fields["seconds"])
                if told != ("canceled", self._options["grace"]):
                    self._judge.wrong(case, f"is said to ignore its cancellation: {told}")

    # A job whose worker was lost in its last attempt

    async def _lose_one(self) -> int | None:
        """Have a job lost, as often as it may run; return how often, None where nobody would notice."""
        drill = self._drill
        if not drill.is_watched_over or drill.random.random() < 0.5:
            return None
        times = drill.random.choice([1, 1, 2])
        await drill.make_type(1.0)
        await drill.jobs.enqueue(drill.type, id="lost", max_attempts=times)
        for _ in range(times):
            await drill.client.accept(drill.type, timeout=10.0)
            await asyncio.sleep(1.5 + 1.0 + drill.moment)
        return times

    async def _check_lost(self, times: int | None) -> None:
        if times is None:
            return
        found = await self._drill.jobs.get(self._drill.type, "lost")
        why = "its worker was lost " + ("once" if times == 1 else f"{times} times")
        kept = None if found.error is None else (found.error.type, found.error.message)
        if found.outcome is not Outcome.FAILED or kept != ("JobsError", why) or found.attempts != times:
            self._drill.complain(f"'lost' was lost {times} times, and is {found!r}: {kept}, {found.attempts} attempts")
