"""How wide a service's workers spread over a queue, and when they take turns: as much as they collide, no more."""

from __future__ import annotations

import asyncio
from typing import Final

from jobs_service.batching.accept_turns import AcceptTurns, SharedTerms
from jobs_service.layer.adaptive_spread import QueueReads, Spreading
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.keyspace import TypeKeys
from tests.simulation.drills.drill import Drill

_WIDEST: Final = 1024
_OF_LIMIT: Final = 16
"""The widest spread as a multiple of what is taken at once, if that is more."""
_MOST_DOUBLINGS: Final = 10
_CLEAN: Final = 8
"""Looks at a queue without a collision after which the spread is half as wide."""
_REMEMBERED: Final = 1000
"""Looks without a collision after which no turns are taken any more."""
_LONGEST: Final = 0.1
"""Seconds after which an accept does not wait for another one any longer."""


async def learn_to_spread(drill: Drill) -> None:
    """Have workers collide at queues, and not collide, and take turns while they do."""
    random = drill.random
    types = [drill.jobs._access.keys(drill.type), drill.jobs._access.keys((drill.type, "other"))]
    collisions = _Collisions(drill, types)
    for _ in range(random.randint(4, 10)):
        collisions.happen(types[random.random() < 0.3])
    await _Turns(drill, types).take()


class _Collisions:
    """What a service has learnt from its collisions, beside what it must have learnt.

    Args:
        drill: that they are part of.
        types: of the queues.
    """

    def __init__(self, drill: Drill, types: list[TypeKeys]) -> None:
        self._drill = drill
        self._spreading = Spreading()
        self._doublings = dict.fromkeys(types, 0.0)
        self._turns = dict.fromkeys(types, 0)

    def happen(self, keys: TypeKeys) -> None:
        """Have accepts of one kind be done, one after the other."""
        random = self._drill.random
        kind = random.choice(["clean", "clean", "collide", "collide", "same again", "fails"])
        often = random.choice([1, 2, _CLEAN, 3 * _CLEAN, *([_REMEMBERED] if random.random() < 0.3 else [])])
        for _ in range(often if kind == "clean" else random.choice([1, 1, 2, 4])):
            self._look(keys, kind)
        self._compare(kind)

    def _look(self, keys: TypeKeys, kind: str) -> None:
        """Do one accept, which runs again if it collides, or for another reason."""
        random = self._drill.random
        reads, limit = QueueReads(self._spreading), random.choice([1, 3, 200])
        runs = 1 if kind == "clean" else random.choice([2, 2, 3])
        is_same, widths, collided = kind == "same again", list[int](), 0
        for number in range(runs):
            reads.begin()
            # A run that is done again has collided: at once if it was wide; in exact order, if the next one has
            # not found the same jobs again.
            collided += number > 0 and widths[-1] > 1
            collided += number > 1 and widths[-2] == 1 and not is_same
            widths.append(reads.spread(keys, limit))
            if widths[-1] != self._wide(keys, limit, collided):
                before = f"after {collided} collisions at {self._doublings[keys]} doublings"
                self._complain(f"a look at {limit} {before} is {widths[-1]} wide")
            reads.took(keys, widths[-1], ["a"] if is_same else [f"{number}"])
        collided += runs > 1 and widths[-2] == 1 and not is_same
        reads.end()
        self._learn(keys, collided)

    def _learn(self, keys: TypeKeys, collided: int) -> None:
        if collided:
            self._doublings[keys] = min(self._doublings[keys] + collided, _MOST_DOUBLINGS)
            self._turns[keys] = _REMEMBERED
        else:
            self._doublings[keys] = max(self._doublings[keys] - 1 / _CLEAN, 0.0)
            self._turns[keys] = max(self._turns[keys] - 1, 0)

    def _wide(self, keys: TypeKeys, limit: int, collided: int) -> int:
        widths = round(2 ** min(self._doublings[keys] + collided, _MOST_DOUBLINGS))
        return min((widths - 1) * limit + 1, max(_WIDEST, _OF_LIMIT * limit))

    def _compare(self, kind: str) -> None:
        spreading = self._spreading
        for keys, doublings in self._doublings.items():
            found = spreading.spread(keys, 1), spreading.is_crowded(keys), spreading.takes_turns(keys)
            wanted = self._wide(keys, 1, 0), doublings > 0, self._turns[keys] > 0
            if found != wanted:
                self._complain(f"after {kind}: spread, crowded and turns of {keys.type!r} are {found}, not {wanted}")

    def _complain(self, what: str) -> None:
        self._drill.complain(f"spreading: {what}")


class _Turns:
    """Accepts that wait for one another.

    Args:
        drill: that they are part of.
        types: of the queues.
    """

    def __init__(self, drill: Drill, types: list[TypeKeys]) -> None:
        self._drill = drill
        self._types = types
        self._spreading = Spreading()
        self._begun: list[int] = []
        self._turns: AcceptTurns[int] = AcceptTurns(self._spreading, self._begun.append)

    async def take(self) -> None:
        """Have accepts begin, wait and end."""
        random, turns = self._drill.random, self._turns
        one, other = self._types
        keys = [self._key(one, 1), self._key(one, 2), self._key(other, 1)]
        if turns.must_wait(one):
            self._complain("there are turns at a queue at which nobody has collided")
        self._spreading.learn(one, 1)
        if turns.must_wait(one):
            self._complain("an accept waits for none")
        under_way = random.randint(1, 3)
        for _ in range(under_way):
            turns.begun(one)
        if not turns.must_wait(one) or turns.must_wait(other):
            self._complain("turns are taken at the other queue")
        for number in random.sample([0, 1, 2], random.randint(1, 3)):
            turns.wait(keys[number], number)
        waiting = [number for number in range(3) if turns.waiting(keys[number]) is not None]
        how = random.choice(["end", "end", "wait", "all", "one"])
        if how == "end":
            await asyncio.sleep(random.uniform(0.0, 0.8 * _LONGEST))
            for _ in range(under_way):
                if self._begun:
                    self._complain(f"{self._begun} have begun before all had ended that they wait for")
                turns.ended(one)
            wanted = [number for number in waiting if number != 2]
        elif how == "wait":
            await asyncio.sleep(0.8 * _LONGEST)
            if self._begun:
                self._complain(f"{self._begun} have not waited")
            await asyncio.sleep(0.4 * _LONGEST)
            wanted = waiting
        elif how == "all":
            turns.begin_all()
            wanted = waiting
        else:
            turns.begin(keys[waiting[0]])
            wanted = waiting[:1]
        if sorted(self._begun) != wanted:
            self._complain(f"{how}: {self._begun} have begun of {waiting}, not {wanted}")
        await asyncio.sleep(2 * _LONGEST)
        if sorted(self._begun) != waiting:
            self._complain(f"{how}: in the end {self._begun} have begun of {waiting}")
        if how != "end":
            for _ in range(under_way):
                turns.ended(one)
        if turns.must_wait(one) or turns._waiting or turns._timers or turns._under_way:
            self._complain(f"{how}: in the end there is left {turns._waiting}, {turns._timers}, {turns._under_way}")

    def _key(self, keys: TypeKeys, limit: int) -> SharedTerms:
        return keys, AcceptTerms(limit, None, None, 1, 100), True

    def _complain(self, what: str) -> None:
        self._drill.complain(f"turns: {what}")
