"""Jobs that run, and are seen alive: three times in each timeout, whatever their handlers do, and not afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import RunningJob
from jobs_service.runner import heartbeat
from jobs_service.testing import SimulatedTransaction
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import log_of, notice, opened, running

_BEATS: Final = 3
_GRACE: Final = 4.0
_EXACT: Final = 0.01
_HELD_OFF: Final = 0.05
"""Seconds between two looks at the timeout of the type."""


@dataclass
class _Life:
    """One job.

    Attributes:
        id, how: of it, and what its handler does.
        lock: of its run.
        signs: when it was accepted, and was seen alive since, on the loop's clock, seconds.
        until: when its run was over, or its handler had ended it; None as long as it runs.
    """

    id: str
    how: str
    lock: bytes = b""
    signs: list[float] = field(default_factory=list)
    until: float | None = None


async def show_life(drill: Drill) -> None:
    """Have jobs run for a while, while the timeout of their type changes, and see when each is seen alive."""
    life = _Lives(drill)
    service = drill.client.process.service(supervise=False)
    service.handler(drill.type, **life.options)(life.run)
    await drill.make_type(life.options["timeout"])
    drill.run.world.cluster.observers.append(life)
    try:
        async with opened(drill, service), running(drill, service, 2 * _GRACE):
            try:
                await life.play()
            finally:
                life.let_go()
    finally:
        drill.run.world.cluster.observers.remove(life)
    life.check_signs()


class _Lives:
    """An observer of the cluster."""

    def __init__(self, drill: Drill) -> None:
        choose = drill.random.choice
        self._drill = drill
        self.options: dict[str, Any] = {
            "timeout": choose([1.5, 3.0, 6.0]),
            "slots": 10,
            "grace": _GRACE,
            "interval": 600.0,
            "continuous": lambda job: "continuous" in str(job.id),
        }
        hows = ["holds", "holds", "holds", "finishes", "continuous", "limited", "is deaf"]
        picked = drill.random.sample(hows, drill.random.randint(2, 5))
        self._lives = {f"{number} {how}": _Life(f"{number} {how}", how) for number, how in enumerate(picked)}
        self._timeouts: list[tuple[float, float]] = [(0.0, self.options["timeout"])]
        self._end = asyncio.Event()
        # What others have asked of the store meanwhile comes before a heartbeat.
        self._slack = 0.05 + 8 * drill.latency + (0.3 if drill.run.machine is not None else 0.0)
        self._log = log_of(drill)

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is None:
            return
        now = self._drill.time()
        for entry in transaction.journal:
            if entry.type != self._drill.type or isinstance(entry.result, type):
                continue
            if entry.name == "accept":
                for id, record in entry.result:
                    life = self._lives[str(id)]
                    life.lock, life.signs = record.lock, [now]
            elif entry.name in ("finish", "stop", "crash"):
                self._lives[str(entry.id)].until = now
            elif entry.name == "beat":
                life = self._lives[str(entry.id)]
                over = now if life.until is None else life.until
                if entry.arguments[0] != life.lock or over < now - self._slack:
                    self._drill.complain(f"{life} is over, and is seen alive at {now:.3f}")
                if life.until is None:  # else this was under way
                    life.signs.append(now)

    async def run(self, job: RunningJob) -> None:
        """Go on until the end, or for longer than that."""
        life = self._lives[str(job.id)]
        if life.how == "finishes":
            await asyncio.sleep(self._drill.random.uniform(0.0, self.options["timeout"]))
            await job.finish()
        while not self._end.is_set():
            try:
                await self._end.wait()
            except asyncio.CancelledError:
                if life.how != "is deaf":
                    raise

    def let_go(self) -> None:
        """Have all handlers end."""
        self._end.set()

    async def play(self) -> None:
        """Add the jobs, one after the other, change the timeout, and wait."""
        drill, random = self._drill, self._drill.random
        for life in self._lives.values():
            options: dict[str, Any] = {"time_limit": 300.0} if life.how == "limited" else {}
            await drill.jobs.enqueue(drill.type, id=life.id, **options)
            await asyncio.sleep(random.choice([0.0, random.uniform(0.0, self.options["timeout"] / 3)]))
        await drill.settle()
        await asyncio.sleep(random.uniform(0.5, 1.5) * self.options["timeout"])
        for life in self._lives.values():
            if life.how == "is deaf":  # it is kept alive for as long as it has its grace
                await drill.client.remove(drill.type, life.id)
        if random.random() < 0.7:
            seconds = random.choice([1.5, 3.0, 6.0, 12.0])
            if seconds != self.options["timeout"]:
                self._timeouts.append((drill.time(), seconds))
            await drill.jobs.set_type_timeout(drill.type, seconds)
            await asyncio.sleep(notice(drill) + 1.2 * seconds)
        self._check_long()
        self.let_go()
        await drill.settle()

    def _timeout_at(self, at: float) -> float:
        return next(seconds for since, seconds in reversed(self._timeouts) if since <= at)

    def check_signs(self) -> None:
        """Each was seen alive in time, and not more often than it should."""
        drill = self._drill
        change, seconds = self._timeouts[-1]
        for life in self._lives.values():
            until = drill.time() if life.until is None else life.until
            for sign, later in zip(life.signs, [*life.signs[1:], until], strict=True):
                # When it is noticed that the timeout has changed, all are seen alive at once.
                longest = self._timeout_at(sign) / 2
                if sign < change <= later:
                    longest = min(longest, change - sign + _HELD_OFF + 2 * notice(drill))
                if later - sign > longest + self._slack:
                    drill.complain(f"{life} was silent for {later - sign:.3f} s, with timeouts {self._timeouts}")
            for since, seconds in self._timeouts:
                stretch = [sign for sign in life.signs[1:] if sign >= since and self._timeout_at(sign) == seconds]
                most = 2 + (max(stretch) - min(stretch) + _EXACT) * _BEATS / seconds if stretch else 0
                if len(stretch) > most:
                    drill.complain(f"{life} was seen alive {len(stretch)} times from {since:.3f} on: {self._timeouts}")

    def _check_long(self) -> None:
        """The log says once of each handler that it takes very long, unless that is as it should be."""
        drill, now = self._drill, self._drill.time()
        said = [str(fields["id"]) for _, fields in self._log.of(drill.type, "handler_runs_long")]
        for life in self._lives.values():
            ran = now - life.signs[0] if life.signs else 0.0
            if life.how in ("is deaf", "finishes"):  # it may have been said before that
                continue
            told = said.count(life.id)
            due = life.how == "holds"
            late = max(seconds for _, seconds in self._timeouts) / _BEATS + self._slack
            if told > (due and ran > heartbeat.LONG_RUN - _EXACT) or told < (due and ran > heartbeat.LONG_RUN + late):
                drill.complain(f"{life} has run for {ran:.3f} s, and that was said {told} times")
