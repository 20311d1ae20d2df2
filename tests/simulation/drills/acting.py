"""What single actors promise, and those small things that pace them: when and how each begins, answers, waits, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, ClassVar, Final

from jobs_service.actors.context import OnceEach
from jobs_service.batching.staggering import Stagger
from jobs_service.errors import JobNotFound, StoreDamaged, StoreError, StoreUnavailable
from jobs_service.supervision import Actor, ActorStopped, Down
from jobs_service.supervision.errors import Killed
from jobs_service.supervision.intensity import RestartIntensity
from tests.simulation.drills.drill import Drill, all_ended
from tests.simulation.drills.ground import Ground
from tests.simulation.drills.parts import Broken

_EXACT: Final = 1e-6
_LONG: Final = 300.0


class _Player(Actor):
    """An actor that does what it is told, and notes what it does.

    Args:
        name: of it.
        how: what is special about it.
    """

    shutdown: ClassVar[float | None] = 2.0

    def __init__(self, name: str, how: str = "") -> None:
        super().__init__(name)
        self.done: list[Any] = []
        self._how = how

    async def init(self) -> None:
        await asyncio.sleep(0.1)
        if self._how == "fails":
            raise Broken
        self.done.append("begins")

    async def terminate(self) -> None:
        await asyncio.sleep(0.1)
        self.done.append("ends")
        if self._how == "fails at its end":
            raise Broken

    async def handle(self, message: Any) -> Any:
        if isinstance(message, Down):
            self.done.append(("down", message.process.name, message.cause.__class__))
        elif callable(message):
            return await message(self)
        else:
            self.done.append(message)
        return message

    async def run(self) -> None:
        if self._how != "does not hear":
            await super().run()
        for _ in range(2):  # it takes two reminders before it goes
            try:
                await asyncio.sleep(_LONG)
            except asyncio.CancelledError:
                self.done.append("does not hear")
        await asyncio.sleep(_LONG)


async def act_alone(drill: Drill) -> None:
    """Have single actors begin, answer, wait, look after others and end in some ways."""
    acting = _Acting(drill)
    ways = [acting.answer, acting.begin, acting.end, acting.wait, acting.link, acting.look_after]
    try:
        for way in drill.random.sample([*ways, acting.count, acting.stagger, acting.try_again], 4):
            await way()
            await acting.close()
    finally:
        errors = drill.run.world.errors
        errors[:] = [each for each in errors if f"{drill.type} " not in each]


class _Acting:
    """Some actors.

    Args:
        drill: that they are part of.
    """

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        self._random = drill.random
        self._actors: list[_Player] = []

    def _new(self, how: str = "") -> _Player:
        actor = _Player(f"{self._drill.type} player {len(self._actors)}", how)
        self._actors.append(actor)
        return actor

    async def _started(self, how: str = "") -> _Player:
        actor = self._new(how)
        await actor.start()
        return actor

    async def close(self) -> None:
        """End them all."""
        for each in self._actors:
            await each.stop()

    def _check(self, is_so: bool, what: str) -> None:
        if not is_so:
            self._drill.complain(f"actors: {what}")

    async def _refused(self, call: Awaitable[Any], kind: type[BaseException], what: str) -> BaseException | None:
        try:
            answer = await asyncio.wait_for(call, 60.0)
        except kind as error:
            return error
        except Exception as error:
            self._check(False, f"{what}: {error!r} was raised")
        else:
            self._check(False, f"{what}: the answer is {answer!r}")
        return None

    async def answer(self) -> None:
        """Those who ask are answered in their order, or told why not."""
        one, number = self._new(), self._random.randint(0, 4)
        await self._refused(one.call(1), ActorStopped, "one was asked that has not begun")
        await one.start()
        self._check(await one.call(_ask_yourself) == "refused", "one has asked itself")
        two = await self._started()
        asked = [asyncio.create_task(two.call(each)) for each in range(number)]
        two.cast("cast")
        await all_ended(asked, 1.0)
        self._check([each.result() for each in asked] == [*range(number)], f"{number} have asked: {asked}")
        done = [each for each in two.done if isinstance(each, int)]
        is_in_turn = self._drill.run.world.choices.disorder == 0
        self._check(not is_in_turn or done == [*range(number)], f"{number} have asked in order, and it did {done}")
        leaves = asyncio.create_task(two.call(_rest))
        await asyncio.sleep(0.1)
        leaves.cancel()
        self._check(await two.call("next") == "next", "one who has asked has left, and the next is not answered")
        late = [asyncio.create_task(two.call(_rest)), asyncio.create_task(two.call(_rest))]
        await asyncio.sleep(0.1)
        two.spawn_link(_fail(), "fails")
        await all_ended(late, 1.0)
        for each in late:
            told = each.exception()
            self._check(isinstance(told, ActorStopped) and told.__cause__ is two.cause, f"it has failed: {told!r}")
        error = await self._refused(two.call(1), ActorStopped, "one was asked that has failed")
        self._check(error is None or isinstance(error.__cause__, Broken), f"one has failed, and says {error!r}")

    async def begin(self) -> None:
        """A start that fails, or is given up, has failed."""
        bad = self._new("fails")
        await self._refused(bad.start(), Broken, "one was started whose start fails")
        self._check((bad.state, bad.done) == ("failed", []), f"a start has failed: {bad.state}, {bad.done}")
        good = await self._started()
        self._check(good.state == "running" and good.is_alive, f"one has started, and is {good.state}")
        await self._refused(good.start(), RuntimeError, "one was started twice")
        given_up = self._new()
        starting = asyncio.create_task(given_up.start())
        await asyncio.sleep(self._random.choice([0.0, 0.05]))
        starting.cancel()
        await asyncio.wait([starting], timeout=1.0)
        self._check(starting.cancelled() and not given_up.is_alive, f"a start was given up: {given_up.state}")
        stopped = self._new()
        starting = asyncio.create_task(stopped.start())
        await asyncio.sleep(0.05)
        stopped.request_stop()
        await self._refused(starting, ActorStopped, "one was stopped as it began")

    async def end(self) -> None:
        """An end takes its time, is told once, and has its cause."""
        how = self._random.choice(["", "fails at its end", "does not hear"])
        one, told = await self._started(how), list[Any]()
        one.on_exit(lambda _, cause: told.append(cause))
        one.on_exit(lambda _, cause: told.append("forgotten"))()
        await asyncio.sleep(self._random.choice([0.0, 1.0]))
        began, lived = self._drill.time(), one.tree().seconds
        times = self._random.choice([1, 2])
        stopping = [asyncio.create_task(one.stop()) for _ in range(times)]
        await asyncio.sleep(0.0)
        one.request_stop()
        await all_ended(stopping, 60.0)
        took = self._drill.time() - began
        wanted = 0.1 + (2 * (one.shutdown or 0.0) if how == "does not hear" else 0.0)
        self._check(abs(took - wanted) < _EXACT, f"an end ({how}) took {took} s, not {wanted}")
        failed = Broken if how == "fails at its end" else type(None)
        self._check(
            one.cause.__class__ is failed and told == [one.cause], f"one ({how}) has ended: {told}, {one.cause}"
        )
        self._check(one.state == ("failed" if one.cause else "stopped"), f"one ({how}) has ended, and is {one.state}")
        self._check(one.done[-1:] == ["ends"] and one.done.count("ends") == 1, f"one has ended, and did {one.done}")
        await asyncio.sleep(5.0)
        self._check(abs(one.tree().seconds - lived - took) < _EXACT, f"one lived for {one.tree().seconds} s")
        self._check(await one.ended() is one.cause, "one has ended, and says another cause")

    async def wait(self) -> None:
        """Who waits for a message waits as long as he says."""
        one, drill = await self._started(), self._drill
        seconds = self._random.choice([0.0, -1.0, 0.5])
        began = drill.time()
        found = await one.call(lambda actor: actor.receive(seconds))
        took = drill.time() - began
        self._check(found is None and abs(took - max(0.0, seconds)) < _EXACT, f"{seconds} s: {found} after {took} s")
        waiting = asyncio.create_task(one.call(lambda actor: actor.receive(_LONG)))
        await asyncio.sleep(0.2)
        await self._refused(one.receive(1.0), RuntimeError, "two wait for messages to one")
        one.cast("here")
        await all_ended([waiting], 0.1)
        body = None if waiting.cancelled() else waiting.result().body
        self._check(body == "here", f"one has waited for a message, and got {waiting}")

    async def link(self) -> None:
        """What is linked ends with its actor, before that cleans up; and ends it when it fails."""
        one, done = await self._started(), list[str]()
        how = self._random.choice(["returns", "fails", "is canceled", "stays"])
        work: dict[str, Callable[[], Any]] = {"returns": _return, "fails": _fail}
        linked = one.spawn_link(work.get(how, lambda: _stay(one))(), how)
        await asyncio.sleep(0.1)
        if how == "is canceled":
            linked.cancel()
        await asyncio.sleep(1.0)
        wanted = {"fails": Broken, "is canceled": Killed}.get(how, type(None))
        self._check(one.is_alive == (wanted is type(None)), f"what is linked {how}, and its actor is {one.state}")
        self._check(one.cause.__class__ is wanted, f"what is linked {how}, and its actor ends with {one.cause!r}")
        await one.stop()
        last = one.done[-2:] if how == "stays" else ["linked ends", "ends"]
        self._check(last == ["linked ends", "ends"], f"what is linked {how}, and its actor does {one.done}; {done}")
        try:
            one.spawn_link(_stay(one), "late")
            self._check(False, "something was linked to an actor that has ended")
        except ActorStopped:
            pass

    async def look_after(self) -> None:
        """Who looks after another one is told of its end once, also if it has ended before; unless he forgets it."""
        one, other = await self._started(), await self._started()
        moment, forgets = self._random.choice(["before", "after", "twice"]), self._random.random() < 0.3
        fails = self._random.random() < 0.5
        if moment != "after":
            one.monitor(other)
        if moment == "twice":
            one.monitor(other)
        if forgets:
            one.demonitor(other)
        if fails:
            other.spawn_link(_fail(), "fails")
            await other.ended()
        else:
            await other.stop()
        if moment == "after":
            one.monitor(other)
        await asyncio.sleep(0.1)
        wanted = [("down", other.name, Broken if fails else type(None))]
        wanted = [] if forgets and moment != "after" else wanted
        self._check(one.done[1:] == wanted, f"{moment}, {forgets=}, {fails=}: it was told {one.done[1:]}, not {wanted}")

    # What paces them

    async def count(self) -> None:
        """At most so many restarts are within a period."""
        random = self._random
        most, period, now = random.choice([0, 1, 2, 3]), random.choice([1.0, 10.0]), 0.0
        intensity, times = RestartIntensity(most, period), list[float]()
        for _ in range(12):
            now += random.choice([0.0, 0.0, period / 4, period / 2, period, period + 1.0])
            times.append(now)
            wanted = sum(now - period <= each for each in times) <= most
            self._check(intensity.admit(now) == wanted, f"{most} in {period} s; restarts at {times}: not {wanted}")
        for bad in ((-1, 1.0), (1, 0.0), (1, -1.0)):
            try:
                RestartIntensity(*bad)
                self._check(False, f"{bad} restarts and seconds are taken")
            except ValueError:
                pass
        once, known = OnceEach(2), list[int]()
        for _ in range(8):
            thing = random.randrange(4)
            self._check(once.add(thing) == (thing not in known), f"{thing} is new, where {known} are known")
            known = known if thing in known else [*known, thing][-2:]

    async def stagger(self) -> None:
        """The pause doubles with each collision up to its bound, and shrinks slowly without."""
        random, longest = self._random, self._random.choice([0.25, 0.03, 5.0])
        stagger, window = Stagger(lambda _, most: most, longest), 0.0
        for _ in range(30):
            collided, useful = random.random() < 0.5, random.random() < 0.7
            stagger.learn(collided=collided, useful=useful)
            if collided:
                window = min(longest, max(0.01, 2 * window))
            elif useful:
                window = 0.9 * window if 0.9 * window >= 0.01 else 0.0
            self._check(abs(stagger.pause() - window) < _EXACT, f"the pause is {stagger.pause()}, not {window}")

    async def try_again(self) -> None:
        """What passes is tried again after pauses that grow; what does not is raised at once."""
        random, drill = self._random, self._drill
        first, longest = random.choice([0.05, 0.3]), random.choice([0.5, 2.0])
        ground = Ground(drill, retry_backoff=first, retry_backoff_max=longest)
        context = ground.service(supervise=False)._context
        kind: type[StoreError] = random.choice([StoreUnavailable, StoreDamaged])
        fails, times = random.choice([0, 1, 5, 9]), list[float]()

        async def work() -> str:
            times.append(drill.time())
            if len(times) <= fails:
                raise kind("it is a drill")
            return "done"

        self._check(await context.retried(work, log="") == "done", "what is tried again is not done")
        pause, bound = first, longest if kind is StoreUnavailable else 60.0
        for number, (sooner, later) in enumerate(pairwise(times)):
            self._check(abs(later - sooner - pause) < _EXACT, f"pause {number} is {later - sooner} s, not {pause}")
            pause = min(2 * pause, bound)
        self._check(len(times) == fails + 1, f"it failed {fails} times, and was tried {len(times)} times")
        fails, unless = 1, random.choice([(), (kind,)])
        times.clear()
        error: Any = kind if unless else JobNotFound

        async def refuse() -> None:
            times.append(drill.time())
            raise error("it is a drill")

        await self._refused(context.retried(refuse, unless=unless), error, "what does not pass was tried again")
        self._check(len(times) == 1, f"what does not pass was tried {len(times)} times")


async def _ask_yourself(actor: _Player) -> Any:
    try:
        return await actor.call("me")
    except RuntimeError:
        return "refused"


async def _rest(actor: _Player) -> None:
    await asyncio.sleep(0.5)


async def _stay(actor: _Player) -> None:
    try:
        await asyncio.sleep(_LONG)
    finally:
        await asyncio.sleep(0.05)
        actor.done.append("linked ends")


async def _return() -> None:
    """Do nothing."""


async def _fail() -> None:
    raise Broken
