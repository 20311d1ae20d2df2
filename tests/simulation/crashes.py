"""Which processes have had parts of their services crash, and which errors the services may log because of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from jobs_service.testing import Process, World
from jobs_service.testing.loop import OWNER
from tests.simulation.quiet import Quiet
from tests.simulation.weather import LASTS

Logged: TypeAlias = Callable[[str, Mapping[str, Any]], object]

_OF_CRASHES: Final = (
    "child_crashed",
    "child_start_failed",
    "end_not_written",
    "linked_task_failed",
    "service_failed",
    "supervisor_gave_up",
    "terminate_failed",
)
"""Errors that no service logs, whatever the weather, unless its own actors were made to crash a moment ago."""


class Crashes:
    """What has crashed, and whether the log says more than that.

    Args:
        world: of the run.
        quiet: knows for how long a crash holds up others.
        complain: called with what is wrong.

    Attributes:
        listeners: called with each event of the services' logs, in the service's context.
    """

    def __init__(self, world: World, quiet: Quiet, complain: Callable[[str], object]) -> None:
        self.listeners: list[Logged] = []
        self._world = world
        self._quiet = quiet
        self._complain = complain
        self._crashed: dict[Process, float] = {}
        world.on_log = self._logged

    def crashed(self, process: Process) -> None:
        """Note that a part of a process's service is made to crash now."""
        self._crashed[process] = self._world.loop.time()

    def has_crashed(self, process: Process) -> bool:
        """Whether any part of a process's service has ever been made to crash."""
        return process in self._crashed

    def _logged(self, event: str, fields: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener(event, fields)
        owner = OWNER.get()
        if event not in _OF_CRASHES or (isinstance(owner, Process) and self._follows_a_crash(owner)):
            return
        # Ends that the store has not taken within the grace of a service are left to the next worker.
        is_left = "is not open" in str(fields.get("error")) or fields.get("reason") == "the runner has ended"
        # As the trees of drills are called, whose parts break as they like.
        is_of_drill = any(str(fields.get(name)).startswith("drill ") for name in ("supervisor", "child"))
        if not is_left and not is_of_drill:
            self._complain(f"logged: {owner} {event} {dict(fields)}")

    def _follows_a_crash(self, process: Process) -> bool:
        """Whether a part of the process's service has crashed, and may still be about to be started again."""
        crashed, now = self._crashed.get(process), self._world.loop.time()
        return crashed is not None and now < max(self._quiet.quick_since(), crashed + LASTS["crash"])
