"""Processes that are listed: heard of again and again, silent when they are not, and forgotten after a day."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from jobs_service import ProcessGone, ProcessInfo, ProcessState, RunningJob
from jobs_service.layer import process_rows
from jobs_service.layer.process_rows import ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.testing import SimulatedTransaction
from tests.simulation.drills.drill import Drill, all_ended
from tests.simulation.rarities import few_at_once_are_drawn

_DAY: Final = 86_400.0
_PERIOD: Final = 100.0
"""Seconds between two heartbeats of the processes of which only rows are there; five missed ones are too many."""
_AGES: Final = {
    0.0: ProcessState.RUNNING,
    4.8 * _PERIOD: ProcessState.QUIET,
    5.3 * _PERIOD: ProcessState.SILENT,
    0.5 * _DAY: ProcessState.SILENT,
    _DAY - 300.0: ProcessState.SILENT,
    _DAY + 300.0: None,
    3 * _DAY: None,
}
"""How long ago each was heard of, and what it is taken for then; None if it is forgotten by others."""
_VARIES: Final = 0.1
"""The part of the time between two heartbeats by which that varies."""
_APART: Final = 0.2
"""Seconds between two heartbeats at least, however often something changes."""


async def list_processes(drill: Drill) -> None:
    """Have a process be listed beside others that have ended at some time: all are shown as they are."""
    if drill.run.machine is not None:  # where it is known at once who has died
        return
    random = drill.random
    ages = random.sample([*_AGES], random.randint(2, len(_AGES)))
    rows = {random.randbytes(process_rows.ID_BYTES).hex(): age for age in ages}
    listed = _Listed(drill, random.choice([2.0, 6.0]))
    try:
        await _plant(drill, rows)
        await _compare(drill, rows)
        drill.run.world.cluster.observers.append(listed)
        await listed.live(rows)
    finally:
        if listed in drill.run.world.cluster.observers:
            drill.run.world.cluster.observers.remove(listed)

        async def remove(unit: UnitOfWork) -> None:
            for id in rows:
                process_rows.remove(unit, id)

        await drill.jobs._context.transact(remove)
    with contextlib.suppress(ProcessGone):
        await drill.jobs.quiet_process(next(iter(rows)))
        drill.complain("a process that is not there was asked something")


async def _plant(drill: Drill, rows: dict[str, float]) -> None:
    """Write the rows of processes that were heard of so many seconds ago."""
    now = drill.client.process.clock.wall_time()

    async def write(unit: UnitOfWork) -> None:
        for id, age in rows.items():
            state = ProcessState.QUIET if _AGES[age] is ProcessState.QUIET else ProcessState.RUNNING
            info = ProcessInfo(id, "elsewhere", 1, drill.type, "1", "runner", now - age - 5.0, now - age, state)
            process_rows.write(unit, ProcessRow(info, _PERIOD, b""))

    await drill.jobs._context.transact(write)


async def _compare(drill: Drill, rows: dict[str, float], *, are_gone: bool = False) -> None:
    """Compare which processes are listed, their order, and as what.

    Args:
        are_gone: whether those must be gone of which nothing was heard for a day; else others may have seen to that.
    """
    old = {id for id, age in rows.items() if _AGES[age] is None}
    shown = [each for each in await drill.jobs.processes() if each.worker == drill.type]
    shown = [each for each in shown if are_gone or each.id not in old]
    wanted = [(id, _AGES[age]) for id, age in rows.items() if id not in old]
    wanted.sort(key=lambda each: -rows[each[0]])
    if [(each.id, each.state) for each in shown] != wanted:
        drill.complain(f"listed are {[(each.id, each.state) for each in shown]}, not {wanted}")


class _Listed:
    """One process that runs a handler, and when it was heard of. An observer of the cluster.

    Args:
        drill: that it is part of.
        period: seconds between two heartbeats.
    """

    def __init__(self, drill: Drill, period: float) -> None:
        self._drill = drill
        self._period = period
        self._written: list[float] = []

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        here = f'"{self._drill.type}"'.encode()
        if any(value is not None and here in value.replace(b"\\", b"") for value in transaction.written.values()):
            self._written.append(self._drill.time())

    async def live(self, rows: dict[str, float]) -> None:
        """Be listed for some heartbeats, be asked something now and then, and end."""
        drill, random = self._drill, self._drill.random
        settings = drill.client.process.settings.model_copy(update={"process_heartbeat": self._period})
        service = drill.client.process.service(settings=settings, supervise=random.random() < 0.5)

        @service.handler(drill.type, timeout=60.0)
        async def run(job: RunningJob) -> None:
            """Do nothing."""

        started = asyncio.Event()
        async with service:
            running = asyncio.create_task(service.run(started=started.set), name=f"{drill.type} runs")
            try:
                await started.wait()
                # The first heartbeat comes at some time within the first period.
                await asyncio.sleep(self._period + drill.moment)
                await _compare(drill, rows, are_gone=True)
                self._written.clear()
                await asyncio.sleep(4 * self._period + drill.moment)
                self._check_rhythm()
                await self._ask()
            finally:
                await all_ended([running], 0)
        await drill.settle()
        if await self._find() is not None:
            drill.complain("a process has ended, and is listed")

    def _check_rhythm(self) -> None:
        """Heartbeats come in their time, and vary a little."""
        pauses = [later - sooner for sooner, later in zip(self._written, self._written[1:], strict=False)]
        least, most = (1 - _VARIES) * self._period, (1 + _VARIES) * self._period
        # A row that was read alone, in a transaction of its own, takes its time where others are cleaned up.
        slack = (40 if few_at_once_are_drawn() else 4) * self._drill.latency + 0.001
        if len(pauses) < 2 or not all(least - slack <= each <= most + slack for each in pauses):
            self._drill.complain(f"a process was heard of after {pauses} s, not every {self._period} s or so")

    async def _ask(self) -> None:
        """Ask for something again and again: it is heard of soon, and not each time."""
        drill, found = self._drill, await self._find()
        if found is None:
            drill.complain("a process runs handlers, and is not listed")
            return
        now = drill.client.process.clock.wall_time()
        if not 0.0 <= now - found.heard <= (1 + _VARIES) * self._period + drill.moment:
            drill.complain(f"a process was heard of last at {found.heard}, and now it is {now}")
        self._written.clear()
        for number in range(drill.random.randint(3, 6)):
            await (drill.jobs.resume_process if number % 2 else drill.jobs.quiet_process)(found.id)
            await asyncio.sleep(drill.random.choice([0.0, 0.05]))
        await drill.settle()
        pauses = [later - sooner for sooner, later in zip(self._written, self._written[1:], strict=False)]
        if not all(each >= _APART - drill.latency - 0.001 for each in pauses):
            drill.complain(f"a process was heard of after {pauses} s, and was to wait for {_APART} s at least")

    async def _find(self) -> ProcessInfo | None:
        drill = self._drill
        return next(
            (each for each in await drill.jobs.processes() if any(one.type == drill.type for one in each.handlers)),
            None,
        )
