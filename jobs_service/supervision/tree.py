"""A snapshot of a supervisor tree, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["supervisor", "dynamic", "actor"]
State = Literal["starting", "running", "restarting", "stopping", "stopped", "failed"]


@dataclass(frozen=True)
class Node:
    """One actor or supervisor.

    Attributes:
        name: its name among its supervisor's children.
        kind: "supervisor", "dynamic" (a supervisor of a varying set of children) or "actor".
        state: "restarting" from its end until it has initialized again.
        restarts: number of restarts by its supervisor.
        seconds: from its last start until now, or until its end, by the loop's clock.
        children: in the order of their start.
    """

    name: str
    kind: Kind
    state: State
    restarts: int = 0
    seconds: float = 0.0
    children: list[Node] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the node and everything below it as dicts and lists, ready for JSON."""
        return asdict(self)
