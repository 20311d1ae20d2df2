"""Who waits for a state of a job, its next change or its result: what each is answered, and when, is exact."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from jobs_service import JobEvent, JobFailed, JobNotFound, JobsError, JobState, Outcome
from jobs_service.errors import InvalidJob
from tests.simulation.drills.changing import Changing, News, told
from tests.simulation.drills.drill import LONG, Drill, all_ended
from tests.simulation.model_job import Key

_STATES: Final = (JobState.PENDING, JobState.RUNNING, JobState.FINISHED, JobState.REMOVED)
_FINAL: Final = (JobState.FINISHED, JobState.REMOVED)
_SOON: Final = 0.05
"""Seconds by which a time that is over may be noticed late, where nothing else goes on."""


class _Seen(NamedTuple):
    """What a job was from some time on, on the loop's clock, seconds; `after` the last time at which it was not."""

    news: News
    after: float
    until_told: float


class _Waiter:
    """Somebody who waits for a job.

    Args:
        drill: that it is part of.
        key: the job.
    """

    def __init__(self, drill: Drill, key: Key) -> None:
        random = drill.random
        self._drill, self._key = drill, key
        self.states = random.sample(_STATES, random.choice([0, 0, 1, 1, 2]))
        self.is_result = random.random() < 0.35
        if self.is_result:
            self.states = [*_FINAL]
        self.timeout: float | None = random.choice([None, None, LONG, 0.4, drill.moment * 2.5, drill.moment * 4.5])
        self.began = drill.time()
        self.task = asyncio.create_task(self._wait(), name=f"{drill.type} waits")
        self.ended = 0.0

    def __str__(self) -> str:
        what = "its result" if self.is_result else f"{[each.value for each in self.states]}"
        return f"who waits for {what} of {self._key} for {self.timeout} s from {self.began:.3f} on"

    async def _wait(self) -> Any:
        jobs, random = self._drill.jobs, self._drill.random
        try:
            if self.is_result:
                return await jobs.result(*self._key, timeout=self.timeout)
            words = [random.choice([each, each.value]) for each in self.states]
            return await jobs.wait(*self._key, *words, timeout=self.timeout)
        finally:
            self.ended = self._drill.time()

    def check(self, seen: list[_Seen]) -> None:
        """Compare what it was answered with what the job was, from when it began on."""
        if (complaint := self._wrong(seen)) is not None:
            answer = self.task.exception() or self.task.result()
            self._drill.complain(f"{self} was answered {answer!r} at {self.ended:.3f}: {complaint}")

    def _wrong(self, seen: list[_Seen]) -> str | None:
        last: News | None = None
        until = None if self.timeout is None else self.began + self.timeout
        for each in seen:
            if until is not None and until < each.after:
                break
            state = each.news[0]
            if last is None and state is JobState.REMOVED:
                return self._wrong_error(JobNotFound, "there is no job", each)
            if state in self.states or (not self.states and (last is not None or state in _FINAL)):
                return self._wrong_answer(each)
            if state in _FINAL:
                names = " or ".join(sorted(str(each) for each in self.states))
                return self._wrong_error(JobsError, f"ended as {state.value}, without being {names}", each)
            last = each.news
        if until is None:
            return "it must still wait"
        if not isinstance(self.task.exception(), TimeoutError):
            return f"it must be told that {until:.3f} is over"
        if not until - 1e-6 <= self.ended <= until + _SOON:
            return f"it was to be told that at {until:.3f}"
        said = str(self.task.exception())
        is_now = "" if last is None else f"; it is {last[0].value}"
        # That it was not removed is no news.
        wanted = " or ".join(sorted({*map(str, self.states)} - {"removed"} or {*map(str, self.states)}))
        missing = f"was not {wanted}" if wanted else "did not change"
        if not said.endswith(f"{missing} within {self.timeout} s{is_now}"):
            return f"it must be told that it {missing} ... {is_now}"
        return None

    def _wrong_time(self, seen: _Seen) -> str | None:
        if not seen.after - 1e-6 <= self.ended <= max(seen.until_told, self.began + self._drill.moment):
            return f"that was so after {seen.after:.3f}, and to be told until {seen.until_told:.3f}"
        return None

    def _wrong_error(self, kind: type[JobsError], said: str, seen: _Seen) -> str | None:
        error = self.task.exception()
        if error.__class__ is not kind or said not in str(error):
            return f"it must be told {kind.__name__}, {said!r}"
        assert isinstance(error, JobsError)
        if (error.type, error.id) != self._key:
            return f"it must be told of {self._key}"
        return self._wrong_time(seen)

    def _wrong_answer(self, seen: _Seen) -> str | None:
        error = self.task.exception()
        state, _, outcome, result, failure = seen.news[:5]
        if not self.is_result:
            if error is not None or told(self.task.result()) != seen.news:
                return f"it must be told {seen.news}"
        elif state is JobState.REMOVED:
            return self._wrong_error(JobNotFound, "was removed", seen)
        elif outcome is Outcome.SUCCEEDED:
            if error is not None or self.task.result() != result:
                return f"it must be told {result!r}"
        else:
            known = None if not isinstance(error, JobFailed) or error.error is None else error.error
            shown = None if known is None else (known.type, known.message, known.traceback)
            if not isinstance(error, JobFailed) or (error.outcome, shown) != (str(outcome), failure):
                return f"it must be told that it {outcome}, {failure}"
            if (error.type, error.id) != self._key or f"ended as {outcome}" not in str(error):
                return f"it must be told of {self._key}"
        return self._wrong_time(seen)


async def wait_for_states(drill: Drill) -> None:
    """Have some wait for a job from different moments on, while it goes its way to its end."""
    if not drill.is_watched_over:
        return
    random = drill.random
    await drill.make_type()
    jobs = Changing(drill, [(drill.type, "a")])
    if random.random() < 0.85:
        await jobs.add_all()
    await drill.settle()
    seen: list[_Seen] = []
    waiters: list[tuple[_Waiter, int]] = []
    try:
        _look(drill, jobs, seen, drill.time())
        for _ in range(random.randint(3, 7)):
            for _ in range(random.choice([1, 2, 3])):
                waiters.append((_Waiter(drill, jobs.keys[0]), len(seen) - 1))
            # Whoever has just come is told what is so before something changes.
            await drill.settle()
            await _step(drill, jobs, seen)
        waiters += [(_Waiter(drill, jobs.keys[0]), len(seen) - 1) for _ in range(random.choice([0, 1]))]
        await drill.settle()
        while len(seen) == 1 or seen[-1].news[0] not in _FINAL:
            await _step(drill, jobs, seen, ends=True)
        await asyncio.sleep(drill.moment * 5)
        late = await all_ended([each.task for each, _ in waiters if each.timeout != LONG], 0)
        late += await all_ended([each.task for each, _ in waiters if each.timeout == LONG], 0)
        for waiter, first in waiters:
            if waiter.task in late:
                drill.complain(f"{waiter} waits, and the job was {[each.news for each in seen[first:]]}")
            else:
                waiter.check(seen[first:])
    finally:
        await all_ended([each.task for each, _ in waiters], 0)
    await _refuse(drill)
    if any(keys.type == drill.type for keys in drill.jobs._hub.types()):
        drill.complain("nobody waits any more, and somebody has subscribed")


async def _step(drill: Drill, jobs: Changing, seen: list[_Seen], *, ends: bool = False) -> None:
    """Change the job, and wait until all know it."""
    [key] = jobs.keys
    before = drill.time()
    if ends and drill.job("a") is not None:
        await jobs.end(key)
    else:
        await jobs.change(key)
    _look(drill, jobs, seen, before)
    await drill.settle()


def _look(drill: Drill, jobs: Changing, seen: list[_Seen], before: float) -> None:
    news = jobs.news(jobs.keys[0])
    if not seen or news != seen[-1].news:
        seen.append(_Seen(news, before, drill.time() + drill.moment))


async def _refuse(drill: Drill) -> None:
    """What cannot be waited for is refused at once."""
    for state in drill.random.sample(["done", "unreadable", "Finished", 3], 2):
        try:
            event: JobEvent = await drill.jobs.wait(drill.type, "a", state, timeout=0.1)  # type: ignore[arg-type]
        except InvalidJob:
            continue
        except (JobsError, TimeoutError) as error:
            drill.complain(f"who waits for {state!r} is told {error!r}")
        else:
            drill.complain(f"who waits for {state!r} is told {event}")
