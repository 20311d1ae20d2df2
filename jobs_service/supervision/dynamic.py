"""The supervisor of a varying set of children: Erlang's simple_one_for_one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar, TypeVar, cast

from jobs_service.supervision.child import Child, ChildSpec
from jobs_service.supervision.errors import ActorStopped
from jobs_service.supervision.process import Process, stop_in_order
from jobs_service.supervision.supervising import Supervising
from jobs_service.supervision.tree import Kind

P = TypeVar("P", bound=Process)


class DynamicSupervisor(Supervising):
    """Starts without children; others start and stop them while it runs. Children know nothing of each other.

    A child that ends by itself is forgotten or restarted, as its spec says. When the supervisor stops, it stops all
    children at once and waits for all.

    Args:
        name: as `Process.name`.
        max_restarts: the greatest number of restarts, of all children together, within any `restart_period`; one more
            ends the supervisor. Temporary children never count.
        restart_period: seconds of the loop's clock.
    """

    kind: ClassVar[Kind] = "dynamic"

    def __init__(self, name: str, *, max_restarts: int = 10, restart_period: float = 3.0) -> None:
        super().__init__(name, max_restarts=max_restarts, restart_period=restart_period)
        self._by_name: dict[str, Child] = {}

    async def start_child(self, spec: ChildSpec[P]) -> P:
        """Start a child and return it when it has initialized. Many children can be started at the same time.

        A caller that is canceled meanwhile leaves no child behind.

        Raises:
            BaseException: the error of the child's start; nothing of the child is left, and it counts as no restart.
            ActorStopped: the supervisor does not run, or the child was stopped while it was starting.
            ValueError: a child of that name exists, or has not quite ended yet.
        """
        if self.state != "running":
            raise ActorStopped(f"supervisor {self.name!r} is {self.state}: it takes no children") from self.cause
        if spec.name in self._by_name:
            raise ValueError(f"supervisor {self.name!r} has a child {spec.name!r} already")
        child = self._by_name[spec.name] = Child(spec)
        try:
            return cast(P, await self._start(child))
        except BaseException:
            self._gone(child)
            raise

    async def stop_child(self, which: Process | str) -> None:
        """Stop a child, given as an object or by name, and return when it has ended. No effect if there is none.

        A caller that is canceled meanwhile returns at once; the child ends all the same.
        """
        child = self._find(which)
        if child is not None:
            await self._stop_for_good([child])

    async def stop_all(self) -> None:
        """Stop all present children at once and return when they have ended. The supervisor itself goes on."""
        await self._stop_for_good(list(self._by_name.values()))

    def _places(self) -> Iterable[Child]:
        return self._by_name.values()

    def child(self, name: str) -> Process | None:
        child = self._by_name.get(name)
        return None if child is None else child.process

    def _find(self, which: Process | str) -> Child | None:
        if isinstance(which, str):
            return self._by_name.get(which)
        child = self._by_name.get(which.name)
        if child is not None and child.process is which:
            return child
        return next((child for child in self._by_name.values() if child.process is which), None)

    async def _start_children(self) -> None:
        pass

    async def _restart(self, child: Child) -> None:
        await self._start_again(child)

    async def _stop_for_good(self, children: list[Child]) -> None:
        leaving = []
        for child in children:
            child.life += 1  # from here on its end is no news
            child.restarting = False
            if child.process is not None and child.process.is_alive:
                leaving.append(child.process)
                child.process.on_exit(partial(self._left, child))
                child.process.request_stop()
            else:
                self._gone(child)
        for process in leaving:
            await process.ended()

    def _left(self, child: Child, *_: object) -> None:
        self._gone(child)

    async def _stop_children(self) -> None:
        for child in self._by_name.values():
            child.life += 1
            child.restarting = False
        for process in self.children:
            process.request_stop()
        await stop_in_order(self.children)
        self._by_name.clear()

    def _gone(self, child: Child) -> None:
        if self._by_name.get(child.spec.name) is child:
            del self._by_name[child.spec.name]
