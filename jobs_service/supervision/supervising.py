"""The base of all supervisors: queues the ends of children, counts restarts, and ends in order."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import ClassVar

from jobs_service.errors import StoreLost, SupervisorFailed
from jobs_service.supervision.child import Child
from jobs_service.supervision.intensity import RestartIntensity
from jobs_service.supervision.process import Process, log
from jobs_service.supervision.tree import Node


class Supervising(Process):
    """A process that starts other processes and restarts them after their ends.

    It handles one event at a time, in the order of their occurrence, like Erlang's supervisors. It ends on request, or
    with SupervisorFailed; in both cases its children have ended before.

    Args:
        name: as `Process.name`.
        max_restarts: the greatest number of restarts within any `restart_period`.
        restart_period: seconds of the loop's clock.
    """

    total_restarts: ClassVar[int] = 0
    """Number of restarts of all children in this operating system process."""
    shutdown: ClassVar[float | None] = None  # it takes as long as its children take, and these have limits of their own

    def __init__(self, name: str, *, max_restarts: int, restart_period: float) -> None:
        super().__init__(name)
        self._intensity = RestartIntensity(max_restarts, restart_period)
        self._exits: deque[tuple[Child, int, BaseException | None]] = deque()
        self._news: asyncio.Future[None] | None = None

    @property
    def children(self) -> list[Process]:
        """The children in the order of their start, including ended ones that are not forgotten."""
        return [child.process for child in self._places() if child.process is not None]

    def child(self, name: str) -> Process | None:
        """Return the newest process of a child by name; a restart makes another one. None if unknown."""
        return next((child.process for child in self._places() if child.spec.name == name), None)

    @abstractmethod
    def _places(self) -> Iterable[Child]:
        """The children, in the order of their start."""

    @abstractmethod
    async def _start_children(self) -> None:
        """Start the initial children."""

    @abstractmethod
    async def _restart(self, child: Child) -> None:
        """Restart an ended child (`_start_again`), and all others that must restart with it."""

    @abstractmethod
    async def _stop_children(self) -> None:
        """Stop all children in the right order, even if the caller is canceled, however often."""

    def _gone(self, child: Child) -> None:
        """Drop a child that has ended by itself and is not restarted."""

    async def _live(self) -> None:
        try:
            await self._start_children()
            self._initialised()
            while True:
                child, life, cause = await self._next_exit()
                if child.life == life:
                    self._count_restart(child, cause)
                    await self._restart(child)
        finally:
            self.state = "stopping"
            await self._stop_children()

    async def _next_exit(self) -> tuple[Child, int, BaseException | None]:
        while not self._exits:
            self._news = self._loop.create_future()
            await self._news
        return self._exits.popleft()

    def _count_restart(self, child: Child, cause: BaseException | None) -> None:
        name, allowed = child.spec.name, self._intensity.max_restarts
        fields = {"supervisor": self.name, "child": name, "cause": repr(cause)}
        if self._intensity.admit(self._loop.time()):
            log.warning("child_restarting", **fields)
            return
        period = self._intensity.period
        log.error("supervisor_gave_up", **fields, max_restarts=allowed, restart_period=period)
        raise SupervisorFailed(
            f"supervisor {self.name!r} gave up: child {name!r} ended once more after {allowed} restarts"
            f" within {period:g} s; the last time because of {cause!r}"
        ) from cause

    async def _start(self, child: Child) -> Process:
        """Start a new life of the child, and return when it has initialized; raise the error of its start."""
        child.life = life = child.life + 1
        child.process = None
        process: Process = child.spec.start()
        child.process = process
        process.supervisor = self.name
        await process.start()
        child.restarting = False
        process.on_exit(lambda _, cause: self._child_ended(child, life, cause))
        return process

    async def _start_again(self, child: Child) -> bool:
        """Restart a child; return whether that succeeded.

        A failure counts as one more end of the child, whose turn comes again, as one more restart.
        """
        life = child.life + 1
        try:
            await self._start(child)
        except Exception as error:
            self._child_ended(child, life, error)
            return False
        child.restarts += 1
        Supervising.total_restarts += 1
        return True

    def _child_ended(self, child: Child, life: int, cause: BaseException | None) -> None:
        if child.life != life or isinstance(cause, StoreLost):  # that ends the whole service
            return
        if not child.spec.restart.applies_to(cause):
            self._gone(child)
            return
        child.restarting = True
        self._exits.append((child, life, cause))
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _child_nodes(self) -> list[Node]:
        return [child.node() for child in self._places()]
