"""Whether what dead processes have left behind on a machine is found by those who look for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.homes import LONGEST_REST
from tests.simulation.machine import LONGEST_PERIOD

if TYPE_CHECKING:
    from tests.simulation.run import Run

_NOTICED: Final = LONGEST_PERIOD + 1.0
"""Seconds after which a process that has died is noticed by those who look."""
_BURIED: Final = 2 * LONGEST_PERIOD + LONGEST_REST + 3.0
"""Seconds of calm after which nothing is left of processes that died before."""


class Burials:
    """Looks, some time after each death and in the calm, whether the dead are buried."""

    def __init__(self, run: Run) -> None:
        self._run = run
        if run.machine is not None:
            run.machine.on_death = self._died

    def calm(self) -> None:
        """The calm begins: look whether it buries those who have died before."""
        self._run.world.loop.call_later(_BURIED, self._check_all)

    def _died(self, instance: bytes) -> None:
        self._run.world.loop.call_later(_NOTICED, self._check, instance)

    def _check(self, instance: bytes) -> None:
        """Nobody was held up when a process has died, nor since: who looks for such has found it, and those before."""
        machine, quiet = self._run.machine, self._run.quiet
        assert machine is not None
        since = max(quiet.killed_at, quiet.held_up_until)
        if since <= machine.died[instance] and self._has_looked(_NOTICED):
            for each, died in machine.died.items():
                if died <= machine.died[instance]:
                    self._check_taken(each)

    def _check_all(self) -> None:
        """In the calm nothing is left of those that have died before."""
        run = self._run
        if run.machine is None or run.is_over or not self._has_looked(_BURIED - LONGEST_REST):
            return
        for instance in run.machine.died:
            self._check_taken(instance)
        for instance in run.machine.unburied():
            run.complain(f"unburied: there is still a file of {instance.hex()}, which died before the calm")

    def _has_looked(self, seconds: float) -> bool:
        """Whether somebody has looked for dead processes for so long."""
        run = self._run
        since = run.world.loop.time() - seconds
        return any(
            process.running and jobs._tree.root is not None and process.settings.process_check_period
            for process, jobs in run.services.items()
            if run.opened[process] < since
        )

    def _check_taken(self, instance: bytes) -> None:
        for key, job in self._run.history.model.jobs.items():
            if job.lock is not None and job.lock.startswith(instance):
                self._run.complain(f"unburied: {key} is still run by {instance.hex()}, which is dead")
