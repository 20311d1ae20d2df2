"""The list of processes: those that live tell of themselves again and again, others are forgotten after a while."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import fdb.tuple

from jobs_service import JobsService, ProcessGone, ProcessInfo, ProcessState, RunningJob, __version__
from jobs_service.layer.process_rows import ProcessRow
from jobs_service.model import HandlerSlots, ProcessAction, ProcessRequest
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction
from jobs_service.store.memory import MemoryStore
from tests.simulation.drills.drill import Drill, all_ended

_HEARTBEAT: Final = 3.0
_VARIES: Final = 1.1
"""How much longer than that it may be between two."""
_PERIOD: Final = 60.0
_SILENT_AFTER: Final = 5 * _PERIOD
_DAY: Final = 86_400.0
_MOST_ENDED: Final = 100
"""Processes that have ended and are shown at most: docs/layout.md."""
_AGES: Final = (0.0, 100.0, _SILENT_AFTER - 30.0, _SILENT_AFTER + 1.0, 5000.0, _DAY - 60.0, _DAY + 1.0)
_FREED: Final = ("run", "fly")


class _Listed:
    """Processes that are to be listed.

    Args:
        drill: that it is part of.
    """

    def __init__(self, drill: Drill) -> None:
        process = drill.client.process
        self.drill = drill
        seed = f"{drill.run.world.choices.plan.seed}/{drill.type}"
        self.sources = Sources(seed, wall_time=process.clock.wall_time, worker="worker")
        self.settings = process.settings.model_copy(update={"process_heartbeat": _HEARTBEAT})
        self.store = MemoryStore(settings=self.settings, sources=self.sources)
        self.rows: dict[str, ProcessRow] = {}
        self.asked: dict[str, ProcessRequest] = {}

    async def keys(self) -> tuple[set[str], set[str]]:
        """Return the ids of the processes that have a row, and of those that have a request."""
        prefix = await self.store.prefix()

        async def read(transaction: Transaction) -> list[set[str]]:
            heads = [prefix + fdb.tuple.pack((family,)) for family in (50, 51)]
            found = [await transaction.get_range(head, head + b"\xff") for head in heads]
            ids = [[key[len(head) :] for key, _ in pairs] for head, pairs in zip(heads, found, strict=True)]
            return [{fdb.tuple.unpack(id)[0] for id in each} for each in ids]

        rows, requests = await self.store.read(read)
        return rows, requests

    def shown(self, id: str, now: float) -> ProcessInfo:
        """Return what is to be shown of a process that has ended, or has been away."""
        row = self.rows[id]
        is_silent = now - row.info.heard > _SILENT_AFTER
        return replace(
            row.info,
            state=ProcessState.SILENT if is_silent else row.info.state,
            request=self.asked.get(id),
        )


async def know_the_processes(drill: Drill) -> None:
    """List processes of all ages, beside one that begins, works and ends."""
    listed = _Listed(drill)
    looking = JobsService(listed.store, settings=listed.settings, supervise=False, sources=listed.sources)
    working = JobsService(listed.store, settings=listed.settings, sources=listed.sources)
    may_end = asyncio.Event()

    for name in _FREED:

        @working.handler(name, slots=2 if name == "run" else 5, timeout=60.0)
        async def run(job: RunningJob) -> None:
            await may_end.wait()

    async with looking:
        await _plant(listed)
        await _shows(listed, looking, [*listed.rows])
        before = drill.client.process.clock.wall_time()
        started = asyncio.Event()
        async with working:
            running = asyncio.create_task(working.run(started=started.set), name=f"{drill.type} runs")
            try:
                async with asyncio.timeout(drill.moment):
                    await started.wait()
                await asyncio.sleep(drill.moment)
                await _are_forgotten(listed, looking)
                await _tells(listed, looking, before)
                may_end.set()
            finally:
                may_end.set()
                await all_ended([running], 0)
        rows, requests = await listed.keys()
        if rows - listed.rows.keys() or requests - listed.asked.keys():
            drill.complain(f"a process has ended, and left {rows - listed.rows.keys()}, {requests}")


async def _plant(listed: _Listed) -> None:
    """Have there be processes of all ages."""
    random, now = listed.drill.random, listed.drill.client.process.clock.wall_time()
    many = random.choice([3, 8, 8, _MOST_ENDED + 20])
    ages = _AGES if many < _MOST_ENDED else _AGES[3:-1]  # more than are kept, that are silent for less than a day
    for number in range(many):
        heard = now - random.choice(ages) - number / 1000
        state = random.choice([ProcessState.RUNNING, ProcessState.QUIET, ProcessState.STOPPING])
        id, handlers = f"{number:012x}", (HandlerSlots("t", 3, 1), HandlerSlots(("u", 1), 1, 0))
        host, started = random.choice(["a", "b"]), heard - random.choice([1.0, 100.0])
        info = ProcessInfo(id, host, number, f"w{number}", "1", "runner", started, heard, state, 4, 1, handlers, 0)
        listed.rows[id] = ProcessRow(info, _PERIOD, b"")
        if random.random() < 0.3:
            listed.asked[id] = ProcessRequest(random.choice([*ProcessAction]), "somebody", now)
    prefix = await listed.store.prefix()

    async def write(transaction: Transaction) -> None:
        for id, row in listed.rows.items():
            transaction.set(prefix + fdb.tuple.pack((50, id)), row.encode())
        for id, asked in listed.asked.items():
            value = f'{{"action": "{asked.action.value}", "who": "{asked.who}", "at": {asked.at}}}'
            transaction.set(prefix + fdb.tuple.pack((51, id)), value.encode())

    await listed.store.transact(write)


async def _shows(listed: _Listed, looking: JobsService, ids: list[str], *others: str) -> list[ProcessInfo]:
    """Compare what is listed with what there is; return those that were not planted."""
    found = await looking.processes()
    now = listed.drill.client.process.clock.wall_time()
    wanted = sorted((listed.shown(id, now) for id in ids), key=lambda each: (each.host, each.started, each.id))
    planted = [each for each in found if each.id in listed.rows]
    if planted != wanted:
        wrong = [pair for pair in zip(planted, wanted, strict=False) if pair[0] != pair[1]][:1]
        listed.drill.complain(f"{len(planted)} processes are listed of {len(wanted)}: {wrong}")
    if found != sorted(found, key=lambda each: (each.host, each.started, each.id)):
        listed.drill.complain(f"processes are listed in the order {[each.id for each in found]}")
    return [each for each in found if each.id not in listed.rows]


async def _are_forgotten(listed: _Listed, looking: JobsService) -> None:
    """A process that begins has those forgotten that have ended long ago, or too many of them."""
    drill, now = listed.drill, listed.drill.client.process.clock.wall_time()
    ended = [id for id, row in listed.rows.items() if now - row.info.heard > _SILENT_AFTER]
    ended.sort(key=lambda id: -listed.rows[id].info.heard)
    forgotten = {
        id for place, id in enumerate(ended) if place >= _MOST_ENDED or now - listed.rows[id].info.heard > _DAY
    }
    rows, requests = await listed.keys()
    wrong = (listed.rows.keys() - forgotten) ^ (rows & listed.rows.keys())
    wrong |= (listed.asked.keys() - forgotten) ^ (requests & listed.asked.keys())
    if wrong:
        told = {id: (now - listed.rows[id].info.heard, id in rows, id in requests) for id in wrong}
        drill.complain(f"of {len(listed.rows)} processes, these should be kept or forgotten, and are not so: {told}")
    for id in [*forgotten][:1]:
        try:
            await looking.quiet_process(id)
            drill.complain(f"a process was asked something that was forgotten: {listed.rows[id]}")
        except ProcessGone:
            pass
    listed.rows = {id: row for id, row in listed.rows.items() if id not in forgotten}
    listed.asked = {id: row for id, row in listed.asked.items() if id not in forgotten}


async def _tells(listed: _Listed, looking: JobsService, before: float) -> None:
    """A process that lives tells what it does, soon when that changes, and else with each heartbeat."""
    drill, clock = listed.drill, listed.drill.client.process.clock
    taken = dict.fromkeys(_FREED, 0)
    for _ in range(drill.random.randint(2, 4)):
        pause = drill.random.choice([drill.moment, 5.0, 10.0])
        await asyncio.sleep(pause)
        [*found] = await _shows(listed, looking, [*listed.rows])
        if len(found) != 1:
            drill.complain(f"one process lives, and there are {found}")
            return
        [one] = found
        if clock.wall_time() - one.heard > _HEARTBEAT * _VARIES + drill.moment:
            drill.complain(f"a process was heard of {clock.wall_time() - one.heard:.3f} s ago: {one}")
        slots = {"run": 2, "fly": 5}
        handlers = tuple(HandlerSlots(name, slots[name], taken[name]) for name in sorted(_FREED))
        wanted = replace(
            one, host="worker", pid=0, worker="worker", version=__version__, role="runner", state=ProcessState.RUNNING,
            slots=7, unnamed=0, request=None,
        )  # fmt: skip
        if pause > _HEARTBEAT * _VARIES + drill.moment:
            wanted = replace(wanted, taken=sum(taken.values()), handlers=handlers)
        if one != wanted or not before <= one.started <= before + drill.moment:
            drill.complain(f"a process that began at {before} is {one}, and should be {wanted}")
        name = drill.random.choice(_FREED)
        if taken[name] < slots[name]:
            await looking.enqueue(name)
            taken[name] += 1
