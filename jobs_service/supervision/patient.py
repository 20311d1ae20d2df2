"""The supervisor that never gives up: it restarts each child after a growing pause.

For independent children that must not be missing: failures of a child, however many, end neither the others nor the
supervisors above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobs_service.errors import StoreLost
from jobs_service.supervision.child import Child, ChildSpec
from jobs_service.supervision.process import Process, log
from jobs_service.supervision.supervisor import Strategy, Supervisor


class PatientSupervisor(Supervisor):
    """Restarts an ended child after a pause, which doubles with each end in a row; the others go on.

    A failure in a child's very first start is a programming error, and ends this supervisor like any other.

    Args:
        name, children: as for Supervisor.
        first_pause: seconds after the first end.
        longest_pause: limit of the pause in seconds.
        calm: seconds of life after which a child's end is the first in a row again.
    """

    def __init__(
        self,
        name: str,
        children: Sequence[ChildSpec[Process]],
        *,
        first_pause: float,
        longest_pause: float,
        calm: float,
    ) -> None:
        super().__init__(name, children, strategy=Strategy.ONE_FOR_ONE)
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._calm = calm
        self._pauses: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def _child_ended(self, child: Child, life: int, cause: BaseException | None) -> None:
        if child.life != life or isinstance(cause, StoreLost) or not child.spec.restart.applies_to(cause):
            super()._child_ended(child, life, cause)
            return
        child.restarting = True
        pause = self._next_pause(child)
        log.warning("child_restarting", supervisor=self.name, child=child.spec.name, cause=repr(cause), pause=pause)
        later = super()._child_ended
        self._timers[child.spec.name] = self._loop.call_later(pause, later, child, life, cause)

    def _next_pause(self, child: Child) -> float:
        name = child.spec.name
        lived = 0.0 if child.process is None else child.process.tree().seconds
        before = self._pauses.get(name)
        pause = self._first_pause if before is None or lived >= self._calm else min(2 * before, self._longest_pause)
        self._pauses[name] = pause
        return pause

    def _count_restart(self, child: Child, cause: BaseException | None) -> None:
        """Count nothing: restarts have no limit."""

    async def _stop_children(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await super()._stop_children()
