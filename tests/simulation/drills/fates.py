"""What handlers do in the drill of their ends: each row of the table of how a run ends, in several ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from jobs_service import (
    Discard,
    JobCanceled,
    JobError,
    JobTransaction,
    Outcome,
    Retry,
    Snooze,
    WorkerConflict,
)
from tests.simulation.drills.plain_fates import VALUES, PlainFates
from tests.simulation.drills.verdicts import NO_RESULTS, Case, Judge


class Fates:
    """What the handlers of one drill do.

    Args:
        judge: knows what follows.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._drill = judge.drill
        self._random = judge.drill.random

    def cases(self) -> list[Case]:
        """Return one case of each kind of end, those of plain functions as well; drawn in their details."""
        own = [self._again(f"{name}", script) for name, script in self._coroutines().items()]
        scripts = PlainFates(self._judge).scripts()
        plain = [self._again(f"plain {name}", script, in_thread=True) for name, script in scripts.items()]
        return [*own, *plain]

    def _again(self, id: str, script: Callable[[Case, Any], Any], *, in_thread: bool = False) -> Case:
        random = self._random
        options: dict[str, Any] = {}
        if random.random() < 0.4:
            options["max_attempts"] = random.choice([1, 2, 4])
        if random.random() < 0.2:
            options["time_limit"] = random.choice([1.5, 4.0])
        if "group" in id:
            return Case(id, script, 3, {"max_attempts": 10})
        return Case(id, script, random.choice([1, 1, 2, 3]), options, in_thread)

    def _coroutines(self) -> dict[str, Callable[[Case, Any], Any]]:
        """Return coroutine functions."""
        choose = self._random.choice
        return {
            "returns nothing": partial(self._returns, value=None),
            "returns": partial(self._returns, value=choose(VALUES)),
            "returns in the end": partial(self._returns_once, value=choose(VALUES)),
            "raises": self._raises,
            "retries": partial(self._retries, after=choose([0.0, 0.2, 1.3])),
            "retries as usual": partial(self._retries, after=None),
            "raises and retries": self._raises_and_retries,
            "is healthy": self._is_healthy,
            "snoozes": partial(self._snoozes, seconds=choose([0.0, 0.4, 1.7])),
            "discards": self._discards,
            "raises a group of errors": partial(self._raises_a_group, of_errors=True),
            "raises a group of requests": partial(self._raises_a_group, of_errors=False),
            "returns no result": partial(self._returns, value=choose(NO_RESULTS)),
            "exits": partial(self._exits, error=choose([SystemExit, KeyboardInterrupt])),
            "cancels itself": self._cancels_itself,
            "is late": self._is_late,
            "finishes": self._finishes,
            "finishes with": self._finishes_with,
            "cannot finish with": self._cannot_finish_with,
            "finishes in a transaction": self._finishes_in_a_transaction,
            "releases": self._releases,
            "updates": self._updates,
            "asks for another run": self._asks_for_another_run,
            "meets another job": self._meets_another_job,
            "is removed": self._is_removed,
            "is removed by force": self._is_removed,
            "returns a job": self._returns_a_job,
        }

    # Ends without any operation

    async def _spend(self, most: float = 0.3) -> None:
        await asyncio.sleep(self._random.choice([0.0, 0.0, self._random.uniform(0.0, most)]))

    async def _returns(self, case: Case, job: Any, *, value: Any) -> Any:
        await self._spend()
        return value

    async def _returns_once(self, case: Case, job: Any, *, value: Any) -> Any:
        """Fail first: the error stays; what an earlier run has returned does not."""
        await self._spend()
        if not case.goes_well:
            raise ValueError(f"not yet, {case.runs}")
        return value

    async def _raises(self, case: Case, job: Any) -> Any:
        await self._spend()
        if not case.goes_well:
            raise ValueError(f"for the {case.runs}. time")

    async def _retries(self, case: Case, job: Any, *, after: float | None) -> Any:
        await self._spend()
        if not case.goes_well:
            raise Retry(after=after, message=f"asked for it {case.runs}")

    async def _raises_and_retries(self, case: Case, job: Any) -> Any:
        """Both count, whatever the pause."""
        if case.runs > 3:
            return "at last"
        if case.runs == 2:
            raise Retry(after=0.1)
        raise ValueError("in between")

    async def _is_healthy(self, case: Case, job: Any) -> Any:
        """Run longer than what counts as broken, and fail: pauses begin anew."""
        if case.goes_well:
            return
        await asyncio.sleep(self._judge.options["health_threshold"] + 0.3 if case.runs % 2 else 0.0)
        raise ValueError("after a while")

    async def _snoozes(self, case: Case, job: Any, *, seconds: float) -> Any:
        await self._spend()
        if not case.goes_well:
            raise Snooze(seconds)

    async def _discards(self, case: Case, job: Any) -> Any:
        raise Discard("of no use")

    async def _raises_a_group(self, case: Case, job: Any, *, of_errors: bool) -> Any:
        """What counts is the gravest of several."""
        if case.goes_well:
            return
        error, other, discard = ValueError("the first"), KeyError("the second"), Discard("in a group")
        shorter, longer, unknown = Retry(after=0.1), Retry(after=1.1), Retry()
        snooze, later = Snooze(0.1), Snooze(0.9)
        canceled = asyncio.CancelledError()
        both = ExceptionGroup("both", [error, other])
        grave: list[tuple[BaseException, list[BaseException]]] = [
            (both, []),
            (error, self._random.choice([[longer, later], [canceled]])),
            (discard, [error, longer]),
        ]
        light: list[tuple[BaseException, list[BaseException]]] = [
            (longer, [shorter, later, unknown]),
            (later, [snooze]),
            (longer, [later, canceled]),
        ]
        counts, others = (grave if of_errors else light)[case.runs - 1]
        case.counts = counts
        if counts is both:
            raise both
        mixed: list[BaseException] = [counts, *others]
        self._random.shuffle(mixed)
        raise BaseExceptionGroup("several", [mixed[0], BaseExceptionGroup("inner", mixed[1:])])

    async def _exits(self, case: Case, job: Any, *, error: type[BaseException]) -> Any:
        if not case.goes_well:
            raise error("out of here")

    async def _cancels_itself(self, case: Case, job: Any) -> Any:
        if not case.goes_well:
            raise asyncio.CancelledError

    async def _is_late(self, case: Case, job: Any) -> Any:
        """Take longer than the limit, and end within the grace in one way or another."""
        limit = self._judge.limit(case)
        if case.goes_well or limit is None:
            return None
        how = self._random.choice(["raises", "returns", "swallows", "snoozes", "spends"])
        try:
            await asyncio.sleep(limit + 60.0)
        except asyncio.CancelledError:
            took = self._drill.time() - case.began
            if not limit - 1e-3 <= took <= limit + 0.05:
                self._judge.wrong(case, f"is told after {took:.3f} s that its {limit} s are over")
            if how == "spends":
                await asyncio.sleep(0.5 * self._judge.options["grace"])
            if how == "snoozes":
                raise Snooze(0.1) from None
            if how == "swallows":
                raise ValueError("far too late") from None
            if how != "returns":
                raise
        return "too late"

    async def _returns_a_job(self, case: Case, job: Any) -> Any:
        """A job that it has not ended is no result."""
        found = await self._drill.jobs.get(job.type, job.id)
        case.gives_no_result = True
        return self._random.choice([job, found])

    # Ends by operations

    async def _finishes(self, case: Case, job: Any) -> Any:
        """End the job itself, and say more afterwards, which is dropped."""
        await self._spend()
        failed = self._random.random() < 0.4
        if failed:
            await job.finish(outcome=Outcome.FAILED, error=JobError("Own", "reason"), result={"part": 1})
            case.error = ("Own", "reason")
        else:
            await job.finish(result={"own": case.runs})
        outcome, result = (Outcome.FAILED, {"part": 1}) if failed else (Outcome.SUCCEEDED, {"own": case.runs})
        self._judge.ends(case, outcome, result, itself=True)
        return await self._say_more(case)

    async def _say_more(self, case: Case) -> Any:
        await asyncio.sleep(self._random.choice([0.0, 0.3, 1.0]))
        how = self._random.random()
        if how < 0.35:
            raise ValueError("when all is over")
        return None if how < 0.7 else {"not": "stored"}

    async def _finishes_with(self, case: Case, job: Any) -> Any:
        value = self._random.choice(VALUES)
        key = b"drills/%b" % job.lock

        async def bill(tx: JobTransaction) -> Any:
            tx.kv[key] = b"paid"
            return value

        ended = await job.finish_with(bill if self._random.random() < 0.7 else lambda tx: value)
        self._judge.ends(case, Outcome.SUCCEEDED, value, itself=True)
        if self._random.random() < 0.5:
            case.went = True  # what it returns is what it has ended
            return ended
        return await self._say_more(case)

    async def _cannot_finish_with(self, case: Case, job: Any) -> Any:
        """The function of the transaction fails: nothing was written, and what the handler says then counts."""

        async def bill(tx: JobTransaction) -> Any:
            tx.kv[b"drills/never"] = b"paid"
            if self._random.random() < 0.5:
                await tx.finish(job, result="never")
            raise LookupError("no such bill")

        try:
            await (job.finish_with(bill) if self._random.random() < 0.6 else self._drill.jobs.transact(bill))
        except LookupError:
            if case.goes_well:
                return {"in": "the end"}
            raise

    async def _finishes_in_a_transaction(self, case: Case, job: Any) -> Any:
        if not case.goes_well:
            raise Retry(after=0.1)

        async def end(tx: JobTransaction) -> None:
            await tx.finish(job, result={"tx": 1})

        await self._drill.jobs.transact(end)
        self._judge.ends(case, Outcome.SUCCEEDED, {"tx": 1}, itself=True)
        case.went = True
        await asyncio.sleep(self._random.choice([0.0, 0.4, 1.0]))

    async def _releases(self, case: Case, job: Any) -> Any:
        """Give the job back, and go on for a while: it runs again meanwhile."""
        if case.goes_well:
            return
        case.itself = True
        now = self._drill.time()
        self._judge.is_due(case, now, now + self._drill.moment)
        case.attempts = case.crashes = 0
        self._judge.note(case, "stopped", itself=True)
        await job.release()

    async def _updates(self, case: Case, job: Any) -> Any:
        """What it says on its way is there when it runs again, and for those who look."""
        drill = self._drill
        if case.runs > 1 and (job.data or {}).get("step") != case.runs - 1:
            self._judge.wrong(case, f"has the data {job.data}, of run {case.runs - 1}")
        await job.update({"step": case.runs, "call": (job.data or {}).get("call", 0)})
        done, total, message = self._random.choice([(1, None, ""), (0.5, 2, "half"), (3, 4, "nearly")])
        await job.progress(done, total, message)
        seen = await drill.jobs.get(job.type, job.id)
        found = seen.progress
        if found is None or (found.done, found.total, found.message, found.attempt) != (
            done,
            total,
            message,
            case.attempts,
        ):
            self._judge.wrong(case, f"has said {(done, total, message)}, and is seen at {found}")
        if not case.goes_well:
            raise ValueError("on the way")

    async def _asks_for_another_run(self, case: Case, job: Any) -> Any:
        if case.goes_well:
            return "enough"
        later = self._random.choice([0.0, 0.6])
        due = self._drill.time() + later
        changed = await job.resubmit(run_at=self._drill.client.process.clock.wall_time() + later)
        if not changed.resubmit:
            self._judge.wrong(case, f"has asked for another run, and is told {changed!r}")
        await self._spend()
        now = self._drill.time()
        case.went = True
        case.attempts = 0
        case.crashes = 0
        self._judge.note(case, "finished")
        self._judge.is_due(case, due, max(now, due))
        return None

    async def _meets_another_job(self, case: Case, job: Any) -> Any:
        """What is wrong with another job is an error as any other."""
        if case.goes_well:
            return
        raise self._random.choice([WorkerConflict, JobCanceled])("of another", type=job.type, id="another")

    async def _is_removed(self, case: Case, job: Any) -> Any:
        """Wait until somebody has removed the job; end at once, or within the grace, or much later."""
        grace, how = (
            self._judge.options["grace"],
            self._random.choice(["raises", "spends", "returns", "is deaf", "is deaf"]),
        )
        if self._random.random() < 0.5:
            # It is not ended by what has not taken effect.
            with contextlib.suppress(LookupError):
                await job.finish_with(_fail)
        try:
            await asyncio.sleep(600.0)
        except asyncio.CancelledError:
            case.asked = self._drill.time()
            if how == "raises":
                raise
            if how == "is deaf" and not case.forced:
                await self._goes_on(case, grace)
            else:
                await asyncio.sleep(0.5 * grace if how == "spends" else 0.0)
        return {"of no": "use"}

    async def _goes_on(self, case: Case, grace: float) -> None:
        """Ignore it for longer than the grace: the job is given up meanwhile."""
        self._judge.ends(case, Outcome.CANCELED)
        case.went = True
        until = self._drill.time() + grace + 1.5
        case.log.append(("handler_ignores_cancellation", case.attempts))
        while (left := until - self._drill.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue


def _fail(tx: JobTransaction) -> None:
    raise LookupError("no such thing")
