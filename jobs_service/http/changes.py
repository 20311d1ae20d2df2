"""Changes over HTTP: each is done and noted here, for an endpoint of the API and for a form of the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from jobs_service import JobTransaction
from jobs_service.http import gate
from jobs_service.model import Job, JobId, JobType, ProcessAction, ProcessInfo, Removal
from jobs_service.service import actions
from jobs_service.service.actions import Seen

if TYPE_CHECKING:
    from jobs_service.http.state import ServerState
    from jobs_service.http.tokens import Identity

_RETENTION = ("keep", "keep_failed")


class Changes:
    """The changes of one request. The methods raise what those of JobsService and `service.actions` raise.

    Args:
        state: of the server.
        who: the caller; None for a stranger.
        client: address of the client.
    """

    def __init__(self, state: ServerState, who: Identity | None, client: str) -> None:
        self._state = state
        self._service = state.service
        self._who = who
        self._name = "" if who is None else who.name
        self._client = client

    def check_may_run(self, type: JobType) -> None:
        """Check that the caller may control the runs of a type; see `gate.check_may_run`."""
        gate.check_may_run(self._state, self._who, type)

    def noted(self, action: str, type: Any = None, id: Any = None, jobs: int = 1, **what: Any) -> None:
        """Note a change in the audit log; `what` has no job contents."""
        self._state.audit.changed(self._name, self._client, action, type, id, jobs, what)

    # Jobs

    async def resubmit(
        self, type: JobType, id: JobId, seen: Seen | None, changes: Mapping[str, Any], what: Mapping[str, Any]
    ) -> Job:
        """Have a job run again.

        Args:
            type, id, seen, changes: as for `actions.resubmit`.
            what: to note.
        """
        self.check_may_run(type)
        job = await actions.resubmit(self._service, type, id, seen, **changes)
        self.noted("resubmit", type, id, **what)
        return job

    async def run_now(self, type: JobType, id: JobId, seen: Seen | None) -> bool:
        """Make a pending job due now; return whether it was pending."""
        self.check_may_run(type)
        if is_done := await actions.run_now(self._service, type, id, seen):
            self.noted("now", type, id)
        return is_done

    async def cancel(self, type: JobType, id: JobId, seen: Seen | None, action: str = "cancel") -> Removal | None:
        """Ask a running job to end, remove a waiting one; None if it has ended already."""
        removal = await actions.cancel(self._service, type, id, seen)
        said = "unchanged" if removal is None else removal.value
        self.noted(action, type, id, 0 if removal is None else 1, removal=said)
        return removal

    async def remove(self, type: JobType, id: JobId, seen: Seen | None, *, force: bool = False) -> Removal:
        """Remove a job; one that runs is asked to end."""
        removal = await actions.remove(self._service, type, id, seen, force=force)
        self.noted("remove", type, id, removal=removal.value, force=force)
        return removal

    # Types

    async def set_type(self, type: JobType, settings: Mapping[str, Any]) -> None:
        """Set the timeout and the retention of a type.

        Args:
            type: of the jobs.
            settings: `timeout`, unless it is None, and `keep` and `keep_failed` if either is given; seconds.
        """

        async def change(tx: JobTransaction) -> None:
            if settings.get("timeout") is not None:
                await tx.set_type_timeout(type, settings["timeout"])
            if any(name in settings for name in _RETENTION):
                await tx.set_retention(type, **{name: settings.get(name) for name in _RETENTION})

        await self._service.transact(change)
        self.noted("set_type", type, jobs=0, **settings)

    async def pause(self, type: JobType) -> None:
        """Have nobody accept a type's jobs."""
        await self._service.pause(type)
        self.noted("pause", type, jobs=0)

    async def resume(self, type: JobType) -> None:
        """Have a type's jobs accepted again."""
        await self._service.resume(type)
        self.noted("resume", type, jobs=0)

    # Schedules

    async def change_schedule(self, name: str, action: Literal["pause", "resume", "remove"]) -> None:
        """Pause, resume or remove a schedule in the store."""
        schedules = self._service.schedules
        found = await schedules.get(name)
        self.check_may_run(found.type)
        await getattr(schedules, action)(name)
        self.noted(f"{action}_schedule", found.type, jobs=0, schedule=name)

    # Processes

    async def ask_process(self, id: str, action: ProcessAction) -> ProcessInfo:
        """Ask a process to take no more jobs, to take them again, or to end."""
        before = await self._service.ask_process(id, action, self._name or self._client)
        self.noted(f"{action.value}_process", id=id, jobs=0)
        return before
