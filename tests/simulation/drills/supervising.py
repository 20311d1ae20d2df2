"""Small supervisors of small actors: what ends when, what is started again with it, and when it is given up."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from jobs_service import SupervisorFailed
from jobs_service.supervision import (
    Actor,
    ActorStopped,
    DynamicSupervisor,
    PatientSupervisor,
    Process,
    Restart,
    Strategy,
    Supervisor,
)
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.parts import SETTLED, SLOW, Broken, Part, Tree, fail, refused

_LONG: Final = 60.0


async def supervise_parts(drill: Drill) -> None:
    """Have parts of some kinds of tree come, fail and go: what happens is what it must be, in its order."""
    others = drill.random.sample([_come_and_go, _be_patient, _talk], 2)
    tree = Tree(drill)
    try:
        for kind in drill.random.sample([_keep_a_list, *others], 3):
            tree.log.clear()
            tree.fails.clear()
            await kind(tree)
    finally:
        # What parts of it log that are to fail says nothing of the service.
        drill.run.world.errors[:] = [each for each in drill.run.world.errors if tree.name not in each]


async def _keep_a_list(tree: Tree) -> None:
    """A supervisor of a list of parts."""
    random = tree.random
    strategy = random.choice([Strategy.ONE_FOR_ONE, Strategy.REST_FOR_ONE, Strategy.REST_FOR_ONE])
    kinds = [random.choice([*[Restart.PERMANENT] * 3, Restart.TRANSIENT, Restart.TEMPORARY]) for _ in range(4)]
    parts = [(f"part {number}", kind) for number, kind in enumerate(kinds)]
    most, period = random.choice([0, 1, 2, 3, 50]), random.choice([7.0, 11.0])
    supervisor = Supervisor(
        tree.name,
        [tree.spec(*each) for each in parts],
        strategy=strategy,
        max_restarts=most,
        restart_period=period,
    )
    model = _List(tree, supervisor, dict(parts), strategy)
    times: list[float] = []
    failed = False

    async def work() -> None:
        nonlocal failed
        tree.compare("a start", [f"{name} begins" for name, _ in parts])
        for _ in range(random.randint(2, 6)):
            counted = await model.disturb()
            now = tree.drill.time()
            times.extend([now] * counted)
            # Not at the very edge of a period, which is not known to a hair.
            failed = any(len([each for each in times if now - period < each]) > most for _ in range(counted))
            if failed or not model.check():
                return
            await asyncio.sleep(random.choice([0.0, period - 1.0, period + SETTLED]))

    failure = await tree.within(supervisor, work)
    if isinstance(failure, SupervisorFailed) != failed:
        tree.complain(f"with {most} restarts in {period} s, at {times}, a tree has ended with {failure!r}")
    elif not failed:
        tree.compare("an end", [f"{name} ends" for name in [*model.running][::-1]])


class _List:
    """What must become of the parts of a list.

    Args:
        tree, supervisor, strategy: what it is.
        kinds: when each part is started again, by name.

    Attributes:
        running: the parts that run, in their order.
    """

    def __init__(self, tree: Tree, supervisor: Supervisor, kinds: dict[str, Restart], strategy: Strategy) -> None:
        self._tree = tree
        self._supervisor = supervisor
        self._kinds = kinds
        self._strategy = strategy
        self._restarts = dict.fromkeys(kinds, 0)
        self.running = [*kinds]

    async def disturb(self) -> int:
        """Have one part end; return how many restarts that must be the reason for, at most."""
        random, tree = self._tree.random, self._tree
        if not self.running:
            return 0
        name, how = random.choice(self.running), random.choice(["break", "break", "break beside", "stop", "leave"])
        kind = self._kinds[name]
        is_back = kind is Restart.PERMANENT or (kind is Restart.TRANSIENT and how.startswith("break"))
        failing = random.choice([0, 0, 0, 1]) if is_back else 0
        tree.fails[name] = failing
        part = self._supervisor.child(name)
        assert isinstance(part, Actor)
        tree.log.clear()
        part.cast(how)
        wanted, counted = [f"{name} ends"], 0
        if not is_back:
            self.running.remove(name)
            if kind is Restart.TEMPORARY:
                del self._kinds[name]
        else:
            counted = 1 + failing
            wanted += self._start_again(name, failing)
        await asyncio.sleep(SETTLED)
        self._wanted = f"{name} was told to {how}", wanted
        return counted

    def check(self) -> bool:
        """Compare what has happened, and what the tree says of it; return whether it is so."""
        if not self.running and not self._tree.log:
            return True
        if not self._tree.compare(*self._wanted):
            return False
        shown = {each.name: (each.state == "running", each.restarts) for each in self._supervisor.tree().children}
        wanted = {name: (name in self.running, self._restarts[name]) for name in self._kinds}
        if shown != wanted:
            self._tree.complain(f"of {wanted} the tree shows {self._supervisor.tree()}")
        return shown == wanted

    def _start_again(self, name: str, failing: int) -> list[str]:
        """Return what happens when a part is started again whose start fails so often first."""
        order = [*self._kinds]
        group = [name] if self._strategy is Strategy.ONE_FOR_ONE else order[order.index(name) :]
        done = [f"{each} ends" for each in group[:0:-1] if each in self.running]
        temporary = {each for each in group[1:] if self._kinds[each] is Restart.TEMPORARY}
        if failing:
            # Temporary ones behind it are stopped, and are forgotten when it is their turn.
            done += [f"{name} fails"] * failing
        back = [each for each in group if each not in temporary]
        done += [f"{each} begins" for each in back]
        for each in temporary:
            del self._kinds[each]
        for each in back:
            self._restarts[each] += 1
        self.running = [each for each in self._kinds if each in {*self.running, *back}]
        return done


async def _come_and_go(tree: Tree) -> None:
    """A supervisor of parts that others start and stop."""
    random = tree.random
    supervisor = DynamicSupervisor(tree.name, max_restarts=50)
    there: dict[str, Restart] = {}

    async def start(name: str, kind: Restart) -> None:
        await supervisor.start_child(tree.spec(name, kind))

    async def work() -> None:
        nonlocal there
        for number in range(random.randint(4, 9)):
            step = random.choice(
                ["start", "start", "twice", "fail", "cancel", "break", "break", "stop", "stop all", "break all"]
            )
            name, kind = f"part {number}", random.choice([*Restart])
            wanted: list[str] = []
            if step in ("start", "twice"):
                await start(name, kind)
                there[name], wanted = kind, [f"{name} begins"]
            if step == "twice":
                await refused(tree, start(name, kind), ValueError, "a second part of one name was started")
            elif step == "fail":
                tree.fails[name] = 1
                await refused(tree, start(name, kind), Broken, "a part was started whose start fails")
                wanted = [f"{name} fails"]
            elif step == "cancel":
                starting = asyncio.create_task(start(name, kind), name=f"{tree.drill.type} starts")
                await asyncio.sleep(random.choice([0.0, SLOW / 2]))
                starting.cancel()
                await asyncio.wait([starting])
                if not starting.cancelled():
                    there[name], wanted = kind, [f"{name} begins"]
                else:
                    wanted = [f"{name} begins", f"{name} ends"] if tree.log else []
            elif step == "stop all":
                await supervisor.stop_all()
                wanted = sorted(f"{each} ends" for each in there)
                there = {}
            elif step == "break all":
                for each in supervisor.children:
                    assert isinstance(each, Actor)
                    each.cast("break")
                wanted = [f"{each} ends" for each in there]
                there = {each: kind for each, kind in there.items() if kind is not Restart.TEMPORARY}
                wanted = sorted([*wanted, *(f"{each} begins" for each in there)])
            elif there and step not in ("start", "twice"):
                name = random.choice([*there])
                wanted = [f"{name} ends"]
                if step == "stop":
                    await supervisor.stop_child(name if random.random() < 0.5 else supervisor.child(name) or name)
                    del there[name]
                else:
                    part = supervisor.child(name)
                    assert isinstance(part, Actor)
                    part.cast("break")
                    if there[name] is Restart.TEMPORARY:
                        del there[name]
                    else:
                        wanted.append(f"{name} begins")
            await asyncio.sleep(SETTLED)
            if step.endswith("all"):
                tree.log.sort()
            shown = sorted((each.name, each.state) for each in supervisor.tree().children)
            if not tree.compare(step, wanted) or shown != [(each, "running") for each in sorted(there)]:
                tree.complain(f"{[*there]} are there after {step}, and shown are {supervisor.tree()}")
                return

    failure = await tree.within(supervisor, work)
    if failure is not None:
        tree.complain(f"a tree has ended with {failure!r}")
    tree.log.sort()
    tree.compare("an end", sorted(f"{name} ends" for name in there))
    await refused(tree, start("late", Restart.PERMANENT), ActorStopped, "a part was started by one that has ended")


async def _be_patient(tree: Tree) -> None:
    """A supervisor that starts its parts again after pauses that grow."""
    random = tree.random
    first, longest, calm = random.choice([0.1, 0.5]), random.choice([1.0, 3.0]), 10.0
    parts = ["part 0", "part 1"]
    supervisor = PatientSupervisor(
        tree.name,
        [tree.spec(name) for name in parts],
        first_pause=first,
        longest_pause=longest,
        calm=calm,
    )

    async def work() -> None:
        tree.compare("a start", [f"{name} begins" for name in parts])
        pause = 0.0
        for _ in range(random.randint(3, 5)):
            is_calm = pause == 0.0 or random.random() < 0.25
            if is_calm and pause:
                await asyncio.sleep(calm + 1.0)
            pause = first if is_calm else min(2 * pause, longest)
            part = supervisor.child("part 0")
            assert isinstance(part, Actor)
            part.cast("break")
            await part.ended()
            await asyncio.sleep(pause - 0.02)
            if not tree.compare("an end before the pause is over", ["part 0 ends"]):
                return
            await asyncio.sleep(0.04 + SLOW)
            if not tree.compare(f"a pause of {pause} s", ["part 0 begins"]):
                return

    failure = await tree.within(supervisor, work)
    if failure is not None:
        tree.complain(f"a patient tree has ended with {failure!r}")
    if len(tree.log) != len(parts):
        tree.complain(f"a patient tree has ended, and its parts have done {tree.log}")


async def _talk(tree: Tree) -> None:
    """Two parts, one of which looks after the other; and those who ask it something."""
    random = tree.random
    one, other = (Part(tree.log, random, name, tree.fails) for name in (f"{tree.name} one", f"{tree.name} other"))
    begun = [f"{each.name} begins" for each in (one, other)]
    await one.start()
    await other.start()
    await one.call(partial(_monitor, other))
    forgets = random.random() < 0.3
    if forgets:
        await one.call(partial(_monitor, other, back=True))
    for number in range(4):
        other.cast(number)
    asked = [asyncio.create_task(other.call(f"{number}"), name=f"{tree.drill.type} asks") for number in range(4)]
    await asyncio.sleep(SETTLED)
    tree.compare("four have asked", [*begun, *(f"{other.name} {number}" for number in range(4))])
    if [each.result() if each.done() else None for each in asked] != ["0", "1", "2", "3"]:
        tree.complain(f"four have asked, and were answered {asked}")
    other.cast(partial(_wait_for, _LONG))
    late = [asyncio.create_task(other.call(number), name=f"{tree.drill.type} asks late") for number in range(3)]
    await asyncio.sleep(1.0)
    linked = random.choice([0, 1, 2])
    how = random.choice(["stop", "break"])
    for _ in range(linked):
        other.spawn_link(_note_end(tree.log), "linked")
    await asyncio.sleep(0.1)
    if how == "stop":
        await other.stop()
    else:
        other.spawn_link(fail(), "beside")
        await other.ended()
    await asyncio.sleep(SETTLED)
    tree.compare(f"an actor was told to {how}", [*["linked ends"] * linked, f"{other.name} ends"])
    if not isinstance(other.cause, Broken if how == "break" else type(None)) or other.state != (
        "stopped" if how == "stop" else "failed"
    ):
        tree.complain(f"an actor was told to {how}, is {other.state}, and the cause is {other.cause!r}")
    if one.heard != ([] if forgets else [(other, other.cause)]):
        tree.complain(f"an actor has ended, and who was to be told of it has heard of {one.heard}")
    for each in late:
        if not each.done() or not isinstance(each.exception(), ActorStopped):
            tree.complain(f"an actor has ended, and who had asked it was told {each}")
        each.cancel()
    await refused(tree, other.call("late"), ActorStopped, "an actor that has ended was asked something")
    await one.stop()
    tree.compare("an actor was stopped", [f"{one.name} ends"])


async def _monitor(other: Process, part: Part, *, back: bool = False) -> None:
    (part.demonitor if back else part.monitor)(other)


async def _wait_for(seconds: float, part: Part) -> None:
    await asyncio.sleep(seconds)


async def _note_end(log: list[str]) -> None:
    try:
        await asyncio.sleep(_LONG)
    finally:
        log.append("linked ends")
