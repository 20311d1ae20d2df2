"""One subscription to several jobs, from which several tasks take, now and then nobody: who is told what, is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from jobs_service import JobEvent, JobNotFound, JobsError, JobState, JobType, RecordDamaged
from jobs_service.actors import notifier
from jobs_service.actors.subscriptions import Subscription
from jobs_service.layer.record import Record
from tests.simulation.drills.changing import Changing, News, news_in, told
from tests.simulation.drills.drill import Drill, all_ended
from tests.simulation.model_job import Key

_MANY: Final = 11
"""Jobs of one type that are more than a notifier simply reads each time."""

_FINAL: Final = (JobState.FINISHED, JobState.REMOVED)


async def follow_several_jobs(drill: Drill) -> None:
    """Subscribe to several jobs at once, some of them named twice, or not there, or not to be read; change them."""
    if not drill.is_watched_over:
        return
    random = drill.random
    types: list[JobType] = [drill.type]
    if random.random() < 0.3:
        types.append((drill.type, "b"))
    for type in types:
        await drill.make_type(type=type)
    count = random.choice([1, 2, 2, 4, _MANY])
    jobs = Changing(drill, [(random.choice(types), f"j{number}") for number in range(count)])
    await jobs.add_all()
    missing: list[Key] = [(random.choice(types), f"none {number}") for number in range(random.choice([0, 0, 1, 2]))]
    broken: list[Key] = [(drill.type, "broken")] * random.choice([0, 0, 0, 1])
    for type, id in broken:
        await drill.jobs.add(type, id, {"broken": drill.type})
    with _some_unreadable(f'"broken":"{drill.type}"'.encode()):
        follower = _Follower(drill, jobs, missing, broken)
        try:
            await follower.begin()
            for _ in range(random.randint(4, 8)):
                if follower.goes_on:
                    await random.choice(follower.steps)()
            await random.choice([follower.end_all, follower.end_all, follower.close])()
        finally:
            await follower.stop()
    left = [keys.name for keys in drill.jobs._hub.types() if keys.type in types]
    if left:
        drill.complain(f"nobody has subscribed any more to {left}")


class _Reading:
    """Stands for what notifiers read records with, and cannot read those in which there is one of some marks."""

    def __init__(self) -> None:
        self.marks: set[bytes] = set()

    def decode(self, raw: bytes, *rest: Any) -> Record:
        """Return what a record says."""
        if any(mark in raw for mark in self.marks):
            raise RecordDamaged("it is a drill")
        return Record.decode(raw, *rest)


@contextmanager
def _some_unreadable(mark: bytes) -> Iterator[None]:
    """Have notifiers not be able to read the records in which there is a mark. Several drills may do so."""
    known = vars(notifier)
    reading = known["Record"] if isinstance(known["Record"], _Reading) else _Reading()
    known["Record"] = reading
    reading.marks.add(mark)
    try:
        yield
    finally:
        reading.marks.discard(mark)
        if not reading.marks:
            known["Record"] = Record


class _Follower:
    """A subscription, and those who take from it.

    Attributes:
        steps: what may happen.
    """

    def __init__(self, drill: Drill, jobs: Changing, missing: list[Key], broken: list[Key]) -> None:
        self._drill, self._jobs = drill, jobs
        self._errors: dict[Key, type[JobsError]] = dict.fromkeys(missing, JobNotFound) | dict.fromkeys(
            broken, RecordDamaged
        )
        self._all: list[Key] = [*jobs.keys, *self._errors]
        self._events: Subscription
        self._takers: list[asyncio.Task[None]] = []
        # What came since the last look: what was told of which job, or the class of an error.
        self._came: list[tuple[Key, News | type[JobsError]]] = []
        self._known: dict[Key, News] = {}
        self._ended: set[Key] = set()
        # When it was told of each type last; and how much later it may be told more, while it takes at once.
        self._told_at: dict[JobType, float] = {}
        self._holdoff = 0.0
        self._one_goes = False
        self.steps = [
            self.change_one,
            self.change_one,
            self.change_some,
            self.hold,
            self.hold,
            self.replace,
            self.pass_by,
        ]

    # Those who take

    async def begin(self) -> None:
        """Subscribe, have some tasks take, and see that they are told what there is."""
        random = self._drill.random
        named = [*self._all, *random.sample(self._all, random.randint(0, len(self._all)))]
        random.shuffle(named)
        ways: list[Callable[[list[Key]], Iterable[Key]]] = [tuple, list, iter]
        self._events = self._drill.jobs.subscribe_many(random.choice(ways)(named))
        if random.random() < 0.3:  # It begins when somebody asks for the first event.
            await self._jobs.change(random.choice(self._jobs.keys), may_end=False)
            await self._drill.settle()
        if random.random() < 0.5:
            await self._events.__aenter__()
        self._come()
        await self._drill.settle()
        self._compare(self._expected(self._all), "who subscribes")

    def _come(self) -> None:
        for _ in range(self._drill.random.choice([1, 1, 2, 3])):
            name = f"{self._drill.type} takes"
            self._takers.append(asyncio.create_task(self._take(), name=name))

    async def _take(self) -> None:
        while True:
            try:
                event = await anext(self._events)
            except StopAsyncIteration:
                return
            except (JobNotFound, RecordDamaged) as error:
                self._came.append(((error.type, error.id), error.__class__))  # type: ignore[arg-type]
                continue
            self._note(event)
            came = {key for key, what in self._came if not isinstance(what, type) and what[0] in _FINAL}
            if self._one_goes and {*self._jobs.keys} <= self._ended | came:
                return  # Whoever was told the last thing does not have to ask for more.

    def _note(self, event: JobEvent) -> None:
        key = (event.type, event.id)
        states, now, news = self._drill.run.history.states(*key), self._drill.time(), told(event)
        if not any(state.seq == event.seq and news_in(state) == news for state in states):
            self._drill.complain(f"it was told that {key} is {news} with the seq {event.seq!r}, which it never was")
        before = self._told_at.get(event.type, now)
        if before < now < before + self._holdoff:
            self._drill.complain(f"it was told of {event.type!r} at {before:.3f}, and at {now:.3f} again")
        self._told_at[event.type] = now
        self._came.append((key, news))

    async def _leave(self) -> None:
        """Have all who take go, while they wait."""
        for task in self._takers:
            if task.done() and self.goes_on:
                self._drill.complain(f"{task!r} has ended, and the subscription has not")
        await all_ended(self._takers, 0)
        self._takers.clear()

    async def stop(self) -> None:
        """End whatever goes on."""
        await all_ended(self._takers, 0)
        self._events.close()

    # What happens

    @property
    def goes_on(self) -> bool:
        """Whether there is a job of which the end was not told yet."""
        return not {*self._jobs.keys} <= self._ended

    async def change_one(self) -> None:
        """Change one job: whoever takes is told, unless it is no news."""
        key = self._drill.random.choice(self._jobs.keys)
        await self._jobs.change(key)
        await self._drill.settle()
        self._compare(self._expected([key]), "who follows a job that has changed")

    async def change_some(self) -> None:
        """Change some jobs in a row: whoever takes knows what they are in the end, and nothing that was not so."""
        random = self._drill.random
        some = random.sample(self._jobs.keys, random.randint(1, min(3, len(self._jobs.keys))))
        is_exact = self._drill.latency == 0 and self._drill.run.machine is None
        self._holdoff = self._drill.jobs.settings.notify_holdoff - 1e-6 if is_exact else 0.0
        may_be: dict[Key, list[News]] = {key: [] for key in some}
        for _ in range(random.randint(2, 4)):
            key = random.choice(some)
            await self._jobs.change(key, may_end=False)
            may_be[key].append(self._jobs.news(key))
            await asyncio.sleep(random.choice([0.0, 0.0, 0.03]))
        await self._drill.settle()
        self._holdoff = 0.0
        last: dict[Key, News] = {}
        for key, what in self._came:
            if key not in may_be or isinstance(what, type) or what not in may_be[key] or what == last.get(key):
                self._drill.complain(f"it was told {what} of {key}, which was {may_be.get(key)}")
            else:
                last[key] = what
        for key, what in last.items():
            self._known[key] = what
        self._came.clear()
        self._compare(self._expected(some), "who follows jobs that have changed")

    async def hold(self) -> None:
        """Have nobody take for a while: then each job is told of once, as it is now, in the order of their changes."""
        drill = self._drill
        await self._leave()
        order: list[Key] = []
        over = {*self._ended}
        for _ in range(drill.random.randint(1, 4)):
            key = drill.random.choice(self._jobs.keys)
            if key in over:
                continue
            await self._jobs.change(key, may_end=drill.random.random() < 0.5)
            await drill.settle()
            news = self._jobs.news(key)
            if key in order and news == self._known.get(key):
                order.remove(key)
            elif key not in order and news != self._known.get(key):
                order.append(key)
            if news[0] in _FINAL:
                over.add(key)
        wanted = self._expected(order)
        self._come()
        await drill.settle()
        self._compare(wanted, "who comes back after a while", in_order=len(self._takers) == 1)

    async def replace(self) -> None:
        """Have somebody go who takes, just as something changes: another one is told."""
        drill, random = self._drill, self._drill.random
        key = random.choice(self._jobs.keys)
        before = random.random() < 0.5
        changing = asyncio.create_task(self._jobs.change(key), name=f"{drill.type} changes")
        if before:
            await asyncio.sleep(drill.some_time())
        else:
            await changing
        await drill.pass_turns()
        going = random.choice(self._takers) if self._takers else None
        if going is not None:
            going.cancel()
            self._takers.remove(going)
        if not self._takers or random.random() < 0.5:
            self._come()
        await changing
        if going is not None:
            await asyncio.wait([going])
        await drill.settle()
        self._compare(self._expected([key]), "who is left when another one goes")

    async def pass_by(self) -> None:
        """Have others subscribe to a job, and leave at once: that is nothing to those who stay."""
        drill = self._drill
        key = drill.random.choice(self._all)
        error = self._errors.get(key) or (JobNotFound if drill.job(key[1], key[0]) is None else None)
        try:
            async with asyncio.timeout(drill.moment), drill.jobs.subscribe(*key) as events:
                if drill.random.random() < 0.5:
                    (never := drill.jobs.subscribe(*key)).close()
                    if (event := await anext(never, None)) is not None:
                        drill.complain(f"what was closed before it began told {event}")
                if drill.random.random() < 0.7:
                    first = told(await anext(events))
                    if error is not None or first != self._jobs.news(key):
                        drill.complain(f"it was told {first} of {key}, which is {self._jobs.news(key)}")
        except TimeoutError:
            drill.complain(f"it was told nothing of {key}")
        except (JobNotFound, RecordDamaged) as found:
            if found.__class__ is not error or (found.type, found.id) != key:
                drill.complain(f"it was told {found!r} of {key}")
        await self.change_one()

    # Its end

    async def end_all(self) -> None:
        """End all jobs: all who take end, and whoever asks for more."""
        wanted = [key for key in self._jobs.keys if key not in self._ended]
        self._one_goes = self._drill.random.random() < 0.6
        for key in wanted:
            await self._jobs.end(key)
        await self._drill.settle()
        self._compare(self._expected(wanted), "who follows jobs that have ended")
        await self._is_over("all jobs of which have ended")

    async def close(self) -> None:
        """Close it from another task, sometimes with events that nobody has taken: these are told yet."""
        drill, random = self._drill, self._drill.random
        waits = random.random() < 0.5
        wanted: list[tuple[Key, News | type[JobsError]]] = []
        if not waits:
            await self._leave()
            key = random.choice(self._jobs.keys)
            await self._jobs.change(key)
            await drill.settle()
            wanted = self._expected([key])
        if random.random() < 0.5:
            self._events.close()
        else:
            await self._events.__aexit__(None, None, None)
        if not waits:
            self._come()
        await self._jobs.change(random.choice(self._jobs.keys))
        await drill.settle()
        self._compare(wanted, "who takes from what was closed")
        await self._is_over("that was closed")

    async def _is_over(self, which: str) -> None:
        if late := await all_ended(self._takers, self._drill.moment):
            self._drill.complain(f"{len(late)} of {len(self._takers)} wait for a subscription {which}")
        self._takers.clear()
        try:
            async with asyncio.timeout(self._drill.moment):
                event = await anext(self._events, None)
        except TimeoutError:
            self._drill.complain(f"who asks for more of a subscription {which} waits")
        else:
            if event is not None:
                self._drill.complain(f"a subscription {which} has {event}")

    # What was told

    def _expected(self, keys: list[Key]) -> list[tuple[Key, News | type[JobsError]]]:
        """Return what is to be told of jobs now."""
        wanted: list[tuple[Key, News | type[JobsError]]] = []
        for key in keys:
            error = self._errors.get(key)
            if error is not None:
                wanted.append((key, error))
                continue
            news = self._jobs.news(key)
            if news != self._known.get(key) and key not in self._ended:
                wanted.append((key, news))
        return wanted

    def _compare(self, wanted: list[tuple[Key, News | type[JobsError]]], who: str, *, in_order: bool = False) -> None:
        came = [*self._came] if in_order else sorted(self._came, key=repr)
        if came != (wanted if in_order else sorted(wanted, key=repr)):
            self._drill.complain(f"{who} was told {came}, and must be told {wanted}")
        self._came.clear()
        for key, what in wanted:
            if not isinstance(what, type):
                self._known[key] = what
                if what[0] in _FINAL:
                    self._ended.add(key)
