"""The specification of a supervisor's child, and the supervisor's record of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from jobs_service.supervision.process import Process
from jobs_service.supervision.tree import Node

P_co = TypeVar("P_co", bound=Process, covariant=True)


class Restart(Enum):
    """When to restart a child that has ended without a request of its supervisor."""

    PERMANENT = "permanent"
    """Always."""
    TRANSIENT = "transient"
    """After a failure; not after a return by itself or by its own `request_stop`."""
    TEMPORARY = "temporary"
    """Never; the supervisor forgets it."""

    def applies_to(self, cause: BaseException | None) -> bool:
        """Return whether to restart a child that ended because of `cause`."""
        return self is Restart.PERMANENT or (self is Restart.TRANSIENT and cause is not None)


@dataclass(frozen=True)
class ChildSpec(Generic[P_co]):
    """How to start a child.

    Attributes:
        name: unique among the children of the supervisor.
        start: makes a new, not yet started, actor or supervisor object; called for every start and restart.
        restart: when to start it again.
    """

    name: str
    start: Callable[[], P_co]
    restart: Restart = Restart.PERMANENT


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
    process: Process | None = field(default=None)
    life: int = 0
    restarts: int = 0
    restarting: bool = False

    def node(self) -> Node:
        """Return the child and everything below it as plain data."""
        node = Node(self.spec.name, "actor", "starting") if self.process is None else self.process.tree()
        return replace(
            node,
            name=self.spec.name,
            restarts=self.restarts,
            state="restarting" if self.restarting else node.state,
        )
