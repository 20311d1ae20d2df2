"""Since when nothing has happened that takes time: what is promised to be prompt is held to it only from then on."""

from __future__ import annotations

from jobs_service.testing import World
from tests.simulation.weather import CATCHES_UP, CATCHES_UP_SOON, HARMLESS, LASTS, RETRIED, SURELY_LASTS, UNNOTICED


class Quiet:
    """What has disturbed a run so far, and until when those whom it has delayed have caught up.

    Args:
        world: of the run.

    Attributes:
        killed_at: when a process was killed last, on the loop's clock, seconds.
        held_up_until: until when the last other thing lasts that takes time.
        retried_at: when a transaction had to run again last.
        hushed: the workers of processes that were asked to take no jobs, until they are asked to go on.
        stopping: those of processes that were asked to stop. It takes as long as their handlers' graces.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.killed_at = self.held_up_until = self.retried_at = 0.0
        self.hushed = set[str]()
        self.stopping = set[str]()
        self._slow_until = 0.0
        self._unsteady_until = 0.0

    def is_quick(self) -> bool:
        """Whether nothing has happened so far that takes time."""
        return not self._slow_until

    def quick_since(self) -> float:
        """Return since when nothing has happened that takes time, on the loop's clock, seconds.

        In the future while something has, or while those whom it has delayed may not have caught up.
        """
        return max(self._slow_until, self._world.cluster.quiet_at + CATCHES_UP if self._slow_until else 0.0)

    def disturb(self, kind: str) -> None:
        """Note that something of this kind happens, a fault or what is like one, and takes its time."""
        now = self._world.loop.time()
        if kind in RETRIED:
            self.retried_at = now
        if kind not in HARMLESS:
            if kind in ("kill", "heir"):
                self.killed_at = now
            else:
                self.held_up_until = max(self.held_up_until, now + LASTS.get(kind, 0.0))
            self.slow_down(LASTS.get(kind, 0.0))
        if kind not in UNNOTICED:
            self.hold_up(SURELY_LASTS.get(kind, 0.0))

    def slow_down(self, seconds: float) -> None:
        """Note that something takes so long, and that others have to catch up then."""
        self._slow_until = max(self._slow_until, self._world.loop.time() + seconds + CATCHES_UP)

    def hold_up(self, seconds: float) -> None:
        """Note that something takes so long."""
        self._unsteady_until = max(self._unsteady_until, self._world.loop.time() + seconds + CATCHES_UP_SOON)

    def steady_since(self) -> float:
        """Return since when nothing takes time for processes that go on, on the loop's clock, seconds.

        In the future while something does; see `quick_since`. What ends a process holds up no other one.
        """
        quiet_at = self._world.cluster.quiet_at
        return max(self._unsteady_until, quiet_at + CATCHES_UP_SOON if quiet_at else 0.0)
