"""Supervisors: of a fixed list of children, patient ones, and of a varying set; and the root of a tree."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

from jobs_service.errors import StoreLost, SupervisorFailed
from jobs_service.supervision.process import ActorStopped, Kind, Node, SupervisedProcess, log, stop_in_order

P_co = TypeVar("P_co", bound=SupervisedProcess, covariant=True)
P = TypeVar("P", bound=SupervisedProcess)


# Children


@dataclass(frozen=True)
class ChildSpec(Generic[P_co]):
    """How to start a child.

    Attributes:
        name: unique among the children of the supervisor.
        start: makes a new, not yet started, actor or supervisor object; called for every start and restart.
    """

    name: str
    start: Callable[[], P_co]


@dataclass(eq=False, slots=True)
class Child:
    """A child's place in its supervisor, which outlives the objects that fill it.

    Attributes:
        process: the newest process; None before the first start, or if making one failed.
        life: grows with every start and every requested stop, so that news of an earlier life is recognized as old.
        restarts: number of restarts.
        restarting: whether the child has ended and waits for its restart.
    """

    spec: ChildSpec[Any]
    process: SupervisedProcess | None = field(default=None)
    life: int = 0
    restarts: int = 0
    restarting: bool = False

    def node(self) -> Node:
        """Return the child and everything below it as plain data."""
        node = Node(self.spec.name, "actor", "starting") if self.process is None else self.process.tree()
        return replace(
            node, name=self.spec.name, restarts=self.restarts, state="restarting" if self.restarting else node.state
        )


class RestartIntensity:
    """Limits the restarts within a sliding period.

    Args:
        max_restarts: most restarts within any period; 0 allows none.
        period: seconds, > 0.
    """

    def __init__(self, max_restarts: int, period: float) -> None:
        if max_restarts < 0 or period <= 0:
            raise ValueError(f"max_restarts must be at least 0 and the period above 0, not {max_restarts} and {period}")
        self.max_restarts = max_restarts
        self.period = period
        self._times: deque[float] = deque()

    def admit(self, now: float) -> bool:
        """Count a restart at `now` (seconds, never going back), and return whether it is still allowed."""
        while self._times and self._times[0] < now - self.period:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) <= self.max_restarts


# All supervisors


class Supervising(SupervisedProcess):
    """A process that starts other processes; its children have ended before it ends."""

    total_restarts: ClassVar[int] = 0
    """Number of restarts of all children in this operating system process."""
    shutdown: ClassVar[float | None] = None  # it takes as long as its children take, and these have limits of their own

    @property
    def children(self) -> list[SupervisedProcess]:
        """The children in the order of their start, including ended ones that are not forgotten."""
        return [child.process for child in self._places() if child.process is not None]

    @abstractmethod
    def _places(self) -> Iterable[Child]:
        """The children, in the order of their start."""

    @abstractmethod
    def _child_ended(self, child: Child, life: int, cause: BaseException | None) -> None:
        """See to the end of a child's life, which nobody has requested if it is still the present one."""

    async def _start(self, child: Child) -> SupervisedProcess:
        """Start a new life of the child, and return when it has initialized; raise the error of its start."""
        child.life = life = child.life + 1
        child.process = None
        process: SupervisedProcess = child.spec.start()
        child.process = process
        process.supervisor = self.name
        await process.start()
        child.restarting = False
        process.on_exit(lambda _, cause: self._child_ended(child, life, cause))
        return process

    def _child_nodes(self) -> list[Node]:
        return [child.node() for child in self._places()]


# A fixed list of children


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

    The contract is that of Erlang/OTP for permanent children. It handles one event at a time, in the order of their
    occurrence. It ends on request, or with SupervisorFailed. A start that fails during the supervisor's own start stops
    the started children and ends the supervisor; during a restart it counts as one more restart and is retried.

    Args:
        name: as `SupervisedProcess.name`.
        children: in the order of their start.
        strategy: selects the children to restart after an end.
        max_restarts: the greatest number of restarts within any `restart_period`; one more ends the supervisor.
        restart_period: seconds of the loop's clock.
    """

    kind: ClassVar[Kind] = "supervisor"

    def __init__(
        self,
        name: str,
        children: Sequence[ChildSpec[SupervisedProcess]],
        *,
        strategy: Strategy,
        max_restarts: int = 3,
        restart_period: float = 10.0,
    ) -> None:
        super().__init__(name)
        self._intensity = RestartIntensity(max_restarts, restart_period)
        self._exits: deque[tuple[Child, int, BaseException | None]] = deque()
        self._news: asyncio.Future[None] | None = None
        self._children = [Child(spec) for spec in children]
        self._strategy = strategy
        names = [spec.name for spec in children]
        if len(set(names)) < len(names):
            raise ValueError(f"supervisor {name!r} has several children of the same name: {names}")

    def child(self, name: str) -> SupervisedProcess | None:
        """Return the newest process of a child by name; a restart makes another one. None if unknown."""
        return next((child.process for child in self._children if child.spec.name == name), None)

    def _places(self) -> Iterable[Child]:
        return self._children

    async def _live(self) -> None:
        try:
            await self._start_children()
            self._initialized()
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
            if not await self._start_again(one):
                return

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
        child.restarting = True
        self._exits.append((child, life, cause))
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _stop_children(self) -> None:
        await self._stop_group(self._children, restarting=False)

    async def _stop_group(self, group: list[Child], *, restarting: bool) -> asyncio.CancelledError | None:
        for child in group:
            child.life += 1  # from here on its end is no news
            child.restarting = restarting
        return await stop_in_order([child.process for child in reversed(group) if child.process is not None])


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
        children: Sequence[ChildSpec[SupervisedProcess]],
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
        if child.life != life or isinstance(cause, StoreLost):
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


# A varying set of children: Erlang's simple_one_for_one


class DynamicSupervisor(Supervising):
    """Starts without children; others start and stop them while it runs. Children know nothing of each other.

    A child that ends by itself is forgotten: its starter monitors it. When the supervisor stops, it stops all
    children at once and waits for all.

    Args:
        name: as `SupervisedProcess.name`.
    """

    kind: ClassVar[Kind] = "dynamic"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._by_name: dict[str, Child] = {}

    async def start_child(self, spec: ChildSpec[P]) -> P:
        """Start a child and return it when it has initialized. Many children can be started at the same time.

        A caller that is canceled meanwhile leaves no child behind.

        Raises:
            BaseException: the error of the child's start; nothing of the child is left.
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

    async def stop_child(self, process: SupervisedProcess) -> None:
        """Stop a child, and return when it has ended. No effect if there is none.

        A caller that is canceled meanwhile returns at once; the child ends all the same.
        """
        await self._stop_for_good([child for child in self._by_name.values() if child.process is process])

    async def stop_all(self) -> None:
        """Stop all present children at once and return when they have ended. The supervisor itself goes on."""
        await self._stop_for_good(list(self._by_name.values()))

    def _places(self) -> Iterable[Child]:
        return self._by_name.values()

    async def _live(self) -> None:
        self._initialized()
        try:
            await self._loop.create_future()
        finally:
            self.state = "stopping"
            await self._stop_children()

    def _child_ended(self, child: Child, life: int, cause: BaseException | None) -> None:
        if child.life == life:
            self._gone(child)

    async def _stop_for_good(self, children: list[Child]) -> None:
        leaving = []
        for child in children:
            child.life += 1  # from here on its end is no news
            child.restarting = False
            if child.process is not None and child.process.is_alive:
                leaving.append(child.process)
                child.process.on_exit(partial(self._gone, child))
                child.process.request_stop()
            else:
                self._gone(child)
        for process in leaving:
            await process.ended()

    async def _stop_children(self) -> None:
        for child in self._by_name.values():
            child.life += 1
            child.restarting = False
        for process in self.children:
            process.request_stop()
        await stop_in_order(self.children)
        self._by_name.clear()

    def _gone(self, child: Child, *_: object) -> None:
        if self._by_name.get(child.spec.name) is child:
            del self._by_name[child.spec.name]


# The boundary between a tree and the program around it


async def run_tree(supervisor: SupervisedProcess, *, started: Callable[[], object] | None = None) -> None:
    """Start a root supervisor, and wait until it ends. Cancel the caller to stop the tree.

    Everything in the tree has ended, in reverse order of its start, before this returns or raises, however often the
    caller is canceled meanwhile. It returns if the supervisor itself was stopped.

    Args:
        supervisor: not yet started.
        started: called once, when the whole tree has initialized; an exception from it stops the tree.

    Raises:
        SupervisorFailed: the tree did not start, or failed more often than its restart intensity allows.
        Killed: the supervisor's own task was canceled from outside.
    """
    try:
        await supervisor.start()
        if started is not None:
            started()
        cause = await supervisor.ended()
    except BaseException as error:
        canceled = await stop_in_order([supervisor])
        if canceled is not None and not isinstance(error, asyncio.CancelledError):
            raise canceled from error
        raise
    if cause is not None:
        raise cause
