"""The supervisor with a fixed list of children, which are started and stopped in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import ClassVar

from jobs_service.errors import SupervisorFailed
from jobs_service.supervision.child import Child, ChildSpec, Restart
from jobs_service.supervision.process import Process, stop_in_order
from jobs_service.supervision.supervising import Supervising
from jobs_service.supervision.tree import Kind


class Strategy(Enum):
    """The children to restart after the end of one of them."""

    ONE_FOR_ONE = "one_for_one"
    """The ended child alone."""
    REST_FOR_ONE = "rest_for_one"
    """The ended child and all children after it, which are stopped first, in reverse order."""


class Supervisor(Supervising):
    """Starts its children in order, each after the initialization of the previous one; stops them in reverse order,
    each after the end of the next one; restarts children that end by themselves. It can be a child of another
    supervisor.

    The contract is that of Erlang/OTP. A start that fails during the supervisor's own start stops the started children
    and ends the supervisor; during a restart it counts as one more restart and is retried. Under `REST_FOR_ONE`,
    temporary children that are stopped because of an earlier child are forgotten, and transient ones that had ended
    well are restarted with the rest.

    Args:
        name: as `Process.name`.
        children: in the order of their start.
        strategy: selects the children to restart after an end.
        max_restarts: the greatest number of restarts within any `restart_period`; one more ends the supervisor.
        restart_period: seconds of the loop's clock.
    """

    kind: ClassVar[Kind] = "supervisor"

    def __init__(
        self,
        name: str,
        children: Sequence[ChildSpec[Process]],
        *,
        strategy: Strategy,
        max_restarts: int = 3,
        restart_period: float = 10.0,
    ) -> None:
        super().__init__(name, max_restarts=max_restarts, restart_period=restart_period)
        self._children = [Child(spec) for spec in children]
        self._strategy = strategy
        names = [spec.name for spec in children]
        if len(set(names)) < len(names):
            raise ValueError(f"supervisor {name!r} has several children of the same name: {names}")

    def _places(self) -> Iterable[Child]:
        return self._children

    async def _start_children(self) -> None:
        for child in list(self._children):
            try:
                await self._start(child)
            except Exception as error:
                raise SupervisorFailed(
                    f"supervisor {self.name!r} did not start: child {child.spec.name!r} failed to start: {error!r}"
                ) from error

    async def _restart(self, child: Child) -> None:
        group = [child]
        if self._strategy is Strategy.REST_FOR_ONE:
            group = self._children[self._children.index(child) :]
        if canceled := await self._stop_group(group, restarting=True):
            raise canceled
        for one in group:
            if one.spec.restart is Restart.TEMPORARY:
                self._gone(one)
            elif not await self._start_again(one):
                return

    async def _stop_children(self) -> None:
        await self._stop_group(self._children, restarting=False)

    async def _stop_group(self, group: list[Child], *, restarting: bool) -> asyncio.CancelledError | None:
        for child in group:
            child.life += 1  # from here on its end is no news
            child.restarting = restarting
        return await stop_in_order([child.process for child in reversed(group) if child.process is not None])

    def _gone(self, child: Child) -> None:
        if child.spec.restart is Restart.TEMPORARY:
            self._children.remove(child)
