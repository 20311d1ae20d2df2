"""Workers who ask for jobs at the same moment: what each gets is known exactly, whoever goes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service import JobsService, JobState, RunningJob
from jobs_service.batching import operations
from jobs_service.errors import StoreUnavailable
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.drills.ground import SOON, TOO_MUCH, Ground, away, conflict
from tests.simulation.rarities import few_at_once_are_drawn
from tests.simulation.sizes import pages_are_small

_PRIORITIES: Final = (0, 0, 0, 1, 5, -1, "p", b"b", ("t", 1))
_DUE: Final = (None, None, None, -3.0, 40.0, 90.0)
_NEVER: Final = 10_000.0
_LOOKS: Final = 10
"""How often who does not wait has jobs made ready that have come due, if he may take none of them."""


class _Job(NamedTuple):
    """A job: its id, its rank among those that are ready, and the seconds until it is due."""

    id: str
    priority: bytes
    due: float | None


class _Worker:
    """Somebody who asks for jobs.

    Args:
        ground: where.
        jobs: whom he asks.
        limit: jobs that he wants.
        terms: of his.
    """

    def __init__(self, ground: Ground, jobs: JobsService, limit: int, terms: dict[str, Any]) -> None:
        self.limit = limit
        self.terms = terms
        self.began = self.ended = ground.time()
        self._ground = ground
        self.task = asyncio.create_task(self._ask(jobs), name=f"{ground.drill.type} works")

    def __str__(self) -> str:
        return f"who asks for {self.limit} with {self.terms}"

    async def _ask(self, jobs: JobsService) -> list[RunningJob]:
        try:
            return await jobs.accept_many(self._ground.type, self.limit, **self.terms)
        finally:
            self.ended = self._ground.time()

    @property
    def got(self) -> list[RunningJob]:
        """What came for him, if it did."""
        is_answered = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if is_answered else []

    def may_take(self, job: _Job, by: float) -> bool:
        """Whether a job is one that he wants; `by` are the seconds from the beginning on by which it must be due."""
        most = self.terms["max_priority"]
        return (most is None or job.priority <= fdb.tuple.pack((most,))) and (job.due is None or job.due <= by)


def _cancel(task: asyncio.Task[Any], _: object) -> None:
    task.cancel()


async def share_accepts(drill: Drill) -> None:
    """Have workers on several terms ask at the same moment for jobs of which there are some, and have some go."""
    ground = Ground(drill)
    async with ground.service(supervise=False) as jobs, ground.service(supervise=False) as others:
        sharing = _Sharing(ground, jobs, others)
        await jobs.set_type_timeout(ground.type, LONG)
        plain = drill.random.random() < 0.4
        await sharing.add(drill.random.choice([0, 1, 2, 5, 9, 20]), plain=plain)
        await drill.random.choice([sharing.ask_alike, sharing.ask_alike, sharing.ask, sharing.wait, sharing.go])()
        await sharing.sweep()
    if drill.random.random() < 0.3:
        await _pass_over(drill)


async def _pass_over(drill: Drill) -> None:
    """Ask without waiting for what stands behind jobs that have come due and are for others: it looks ten times."""
    ground = Ground(drill, pending_batch=1)
    place = drill.random.choice([1, _LOOKS - 1, _LOOKS, _LOOKS + 1, _LOOKS + 2])
    async with ground.service(supervise=False) as jobs:
        await jobs.set_type_timeout(ground.type, LONG)
        now = ground.wall_time()
        for number in range(1, place + 1):
            priority = 0 if number == place else 9
            await jobs.add(ground.type, str(number), priority=priority, run_at=now + number / 100)
        await asyncio.sleep(1.0)
        found = [await jobs.accept(ground.type, max_priority=0, timeout=0) for _ in range(2)]
        got = [job is not None for job in found]
        if not few_at_once_are_drawn() and not pages_are_small() and got != [place <= _LOOKS, place > _LOOKS]:
            ground.complain(f"a job stood behind {place - 1} that are for others, and two who asked got {found}")


class _Sharing:
    """Jobs, and those who ask for them.

    Args:
        ground: where they are.
        jobs, others: two services, as of two processes.
    """

    def __init__(self, ground: Ground, jobs: JobsService, others: JobsService) -> None:
        self._ground = ground
        self._random = ground.random
        self._jobs = jobs
        self._others = others
        self._there: list[_Job] = []
        self._held: dict[str, RunningJob] = {}
        self._wall = ground.wall_time()
        self._added = 0

    async def add(self, count: int, *, plain: bool = False) -> None:
        """Add jobs, one after the other."""
        for _ in range(count):
            priority = 0 if plain else self._random.choice(_PRIORITIES)
            due = None if plain else self._random.choice(_DUE)
            self._added += 1
            job = _Job(str(self._added), fdb.tuple.pack((priority,)), due)
            self._there.append(job)
            run_at = None if due is None else self._wall + due
            await self._others.add(self._ground.type, job.id, priority=priority, run_at=run_at)

    def _terms(self, timeout: Any = 0) -> dict[str, Any]:
        random = self._random
        due_by = random.choice([None, None, None, 40.0, 60.0])
        return {
            "max_priority": random.choice([None, None, None, 0, 1, "q", -2]),
            "due_by": None if due_by is None else self._wall + due_by,
            "spread": random.choice([1, 1, 1, 2, "adaptive"]),
            "timeout": timeout,
        }

    def _queue(self, worker: _Worker) -> list[_Job]:
        """Return what is there that a worker may take, in the order in which he may."""
        due_by = worker.terms["due_by"]
        by = 0.0 if due_by is None else due_by - self._wall
        left = [job for job in self._there if job.id not in self._held and worker.may_take(job, by)]
        return sorted(left, key=lambda job: job.priority)

    async def ask_alike(self) -> None:
        """Ask on the same terms in one turn: those who come first get what stands first, each as much as he wants."""
        ground, random = self._ground, self._random
        terms, limit, count = self._terms(), random.choice([1, 1, 2, 3]), random.choice([1, 2, 3, 6])
        refused = random.choice(["", "", "", "few", "conflict", "away"])
        if refused == "few":
            ground.refuse_more_than(random.choice([1, 2]), self._jobs, random.choice(TOO_MUCH))
        elif refused:
            ground.refuse_next(1 if refused == "conflict" else 10**6, conflict if refused == "conflict" else away)
        done, runs = ground.doors.begun, count * limit
        workers = [_Worker(ground, self._jobs, limit, terms) for _ in range(count)]
        queue = self._queue(workers[0])
        if refused == "away":
            await asyncio.sleep(SOON)
            ground.doors.refuse = None
            told = [each.task.exception() if each.task.done() else None for each in workers]
            if any(error.__class__ is not StoreUnavailable for error in told) or len({*map(id, told)}) < len(told):
                ground.complain(f"the store is away, and {count} {workers[0]} were told {told}")
            return
        is_ended = await self._ended(workers)
        ground.doors.refuse = None
        if not is_ended:
            return
        done = ground.doors.begun - done
        is_exact = not pages_are_small() and not few_at_once_are_drawn()
        got = [[job.id for job in each.got] for each in workers]
        self._note(workers)
        ids = [job.id for job in queue]
        is_in_turn = ground.drill.run.world.choices.disorder == 0
        # Those that have come due are put into the queue in the order of their times, which are often equal.
        is_ordered = terms["spread"] != 2 and not any(job.due for job in self._there)
        if is_exact and is_in_turn and is_ordered and refused != "few":
            wanted = [ids[number * limit : (number + 1) * limit] for number in range(count)]
            if got != wanted:
                ground.complain(f"{count} {workers[0]} got {got}, and were to get {wanted}")
            if runs <= operations._MOST_JOBS and not refused and done != 1:
                ground.complain(f"{count} {workers[0]} have asked in one turn, and that took {done} looks at the queue")
        everything = [id for some in got for id in some]
        least = min(count * (1 if refused == "few" else limit), len(ids))
        if is_exact and not least <= len(everything) <= min(count * limit, len(ids)):
            ground.complain(f"{count} {workers[0]} got {got}, of {ids}")

    async def ask(self) -> None:
        """Ask on terms of one's own, many at once: nobody gets what he does not want, or what another one has."""
        workers = []
        for _ in range(self._random.choice([2, 4, 8])):
            service = self._random.choice([self._jobs, self._jobs, self._others])
            workers.append(_Worker(self._ground, service, self._random.choice([1, 2, 4]), self._terms()))
        if await self._ended(workers):
            self._note(workers)
        for each in workers:
            left = self._queue(each)
            if not each.got and left and not pages_are_small() and not few_at_once_are_drawn():
                self._ground.complain(f"{each} got nothing, and {left} are left")

    async def wait(self) -> None:
        """Wait for jobs on the same terms, for a time or for ever: those who came first are served first."""
        ground, random = self._ground, self._random
        await self.sweep()
        count, terms = random.choice([1, 2, 5]), self._terms(None)
        terms |= {"max_priority": random.choice([None, 0, 3]), "spread": 1, "due_by": None}
        workers = []
        for _ in range(count):
            terms = {**terms, "timeout": random.choice([None, None, 4.0, 0.7])}
            workers.append(_Worker(ground, self._jobs, 1, terms))
            await asyncio.sleep(0.01)
        await asyncio.sleep(random.choice([0.0, 0.0, 1.0]))
        for _ in range(random.randint(0, count + 1)):
            waiting = [each for each in workers if not each.task.done()]
            await self.add(1, plain=True)
            await asyncio.sleep(SOON)
            served = [each for each in waiting if each.got]
            is_exact = ground.drill.run.world.choices.disorder == 0
            if [each.got[0].id for each in served] != [self._there[-1].id] * bool(waiting):
                ground.complain(f"a job was added, {len(waiting)} have waited, and {len(served)} have got one")
            elif served and is_exact and served[0] is not waiting[0]:
                ground.complain(f"{served[0]} was served, and {waiting[0]} has waited for longer")
        await asyncio.sleep(5.0)
        for each in workers:
            seconds = each.terms["timeout"]
            if each.task.done() and not each.got and abs(each.ended - each.began - (seconds or _NEVER)) > 0.001:
                ground.complain(f"{each} was told after {each.ended - each.began} s that there is nothing")
            if not each.task.done() and seconds is not None:
                ground.complain(f"{each} waits for longer")
        self._note(workers)
        await self._come_due(workers)
        lines = {(each.terms["max_priority"],) for each in workers if not each.task.done()}
        if (watches := ground.store.metrics()["watches"]) > len(lines):
            ground.complain(f"{len(lines)} lines of workers wait for jobs, and there are {watches} watches")
        await all_ended([each.task for each in workers], 0)
        if watches := ground.store.metrics()["watches"]:
            ground.complain(f"nobody waits any more, and there are {watches} watches")

    async def _come_due(self, workers: list[_Worker]) -> None:
        """Have a job be there for later: who has waited for longest gets it when it is due."""
        ground = self._ground
        waiting = [each for each in workers if not each.task.done()]
        self._added += 1
        job = _Job(str(self._added), fdb.tuple.pack((0,)), ground.wall_time() - self._wall + 1.5)
        self._there.append(job)
        due = ground.time() + 1.5
        await self._others.add(ground.type, job.id, run_at=ground.wall_time() + 1.5)
        await asyncio.sleep(1.5 + SOON)
        served = [each for each in waiting if each.got]
        if len(served) != bool(waiting) or any(not due - 0.01 <= each.ended <= due + SOON for each in served):
            ended = [each.ended for each in served]
            ground.complain(f"{len(waiting)} have waited for what was due at {due}; served at {ended}: {served}")
        self._note(served)

    async def go(self) -> None:
        """Ask, and have some go at one moment or another: the others are served, and what nobody got is given back."""
        ground, random = self._ground, self._random
        moment = random.choice(["begin", "commit", "answer", "turn", "turn"])
        ground.doors.shut = "answer" if moment == "turn" else moment
        terms, limit = self._terms(), random.choice([1, 2])
        answers = self._note_answers()
        workers = [_Worker(ground, self._jobs, limit, terms) for _ in range(random.choice([1, 2, 4]))]
        queue = {job.id for job in self._queue(workers[0])}
        await asyncio.sleep(0.01)
        gone = random.sample(workers, random.randint(1, len(workers)))
        for each in gone if moment != "turn" else ():
            each.task.cancel()
        if moment == "turn":
            for each in gone:  # in the very turn in which the answer is there, and before he has it
                answers[each.task].add_done_callback(partial(_cancel, each.task))
        await asyncio.sleep(random.choice([0.0, 0.01]))
        if moment in ("answer", "turn"):  # to give back what nobody got is tried a few times
            ground.refuse_next(random.choice([0, 0, 1, 4]), away)
        ground.doors.open()
        for _ in range(random.choice([0, 0, 1, 2, 3, 4, 5, 8])):
            await asyncio.sleep(0)
        if random.random() < 0.3 and len(gone) < len(workers):
            late = next(each for each in workers if each not in gone)
            gone.append(late)
            moment = "later"
            if not late.task.done():
                late.task.cancel()
        stay = [each for each in workers if each not in gone]
        if not await self._ended(stay):
            return
        await asyncio.sleep(SOON)
        ground.doors.refuse = None
        self._note([*stay, *(each for each in gone if each.got)])
        got = sum(len(each.got) for each in stay)
        if not stay or pages_are_small() or few_at_once_are_drawn():
            return
        # What came for those who went was not there for the others.
        most = min(len(queue), limit * len(stay))
        least = most if moment == "begin" else max(0, min(len(queue) - limit * len(gone), most))
        if not least <= got <= most:
            went = f"{len(gone)} of {len(workers)} went ({moment})"
            ground.complain(f"{went}, the others, {workers[0]}, got {got} of {len(queue)}, not {least} to {most}")

    def _note_answers(self) -> dict[Any, asyncio.Future[Any]]:
        """Note from now on what each worker waits for, by his task."""
        answers: dict[Any, asyncio.Future[Any]] = {}
        operations, accept = self._jobs._operations, self._jobs._operations.accept

        def noted(*args: Any, **options: Any) -> asyncio.Future[Any]:
            answer = answers[asyncio.current_task()] = accept(*args, **options)
            return answer

        vars(operations)["accept"] = noted
        return answers

    # What came

    async def _ended(self, workers: Iterable[_Worker]) -> bool:
        late = await all_ended([each.task for each in workers], SOON)
        told = [each.task.exception() for each in workers if not each.task.cancelled()]
        if late or any(told):
            self._ground.complain(f"{len(late)} who have asked for jobs are not answered; others were told {told}")
        return not late and not any(told)

    def _note(self, workers: Iterable[_Worker]) -> None:
        """Note who holds what, and that it is what he wants."""
        known = {job.id: job for job in self._there}
        for each in workers:
            due_by = each.terms["due_by"]
            by = self._ground.wall_time() if due_by is None else due_by
            for job in each.got:
                if len(each.got) > each.limit or not each.may_take(known[str(job.id)], by - self._wall):
                    self._ground.complain(f"{each} got {each.got}")
                if str(job.id) in self._held:
                    self._ground.complain(f"{each} got {job}, which another one has")
                self._held[str(job.id)] = job

    async def sweep(self) -> None:
        """Take whatever is left: each job is there once, held by nobody, and the first ones come first."""
        ground = self._ground
        await asyncio.sleep(SOON)
        async for job in self._others.list(ground.type, state=JobState.RUNNING):
            if str(job.id) not in self._held:
                ground.complain(f"{job} runs, and nobody has got it")
        left = {job.id for job in self._there} - self._held.keys()
        found: list[RunningJob] = []
        everything: dict[str, Any] = {"due_by": self._wall + _NEVER, "timeout": 0}
        for _ in range(2 + len(left)):
            found += await self._others.accept_many(ground.type, 50, **everything)
        if sorted(str(job.id) for job in found) != sorted(left):
            ground.complain(f"{sorted(left)} were left, and {found} came")
        ranks = [fdb.tuple.pack((job.priority,)) for job in found]
        if ranks != sorted(ranks) and not pages_are_small() and not few_at_once_are_drawn():
            ground.complain(f"{found} came, which is not the order of their priorities: {ranks}")
        self._held |= {str(job.id): job for job in found}
        for job in self._held.values():
            await job.finish()
        if running := await self._others.active_ids(ground.type):
            ground.complain(f"all jobs have ended, and {running} run")
        self._there.clear()
        self._held.clear()
