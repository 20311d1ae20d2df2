"""The operations of a client on types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobs_service.arguments import check_keep, check_seconds
from jobs_service.client.access import ServerAccess
from jobs_service.durations import Duration
from jobs_service.http import wire
from jobs_service.model import JobType
from jobs_service.model.terms import exact_type
from jobs_service.model.type_state import QueueState, Retention
from jobs_service.redaction import Redaction


class RemoteTypeOperations:
    """The part of JobsClient about types, as in JobsService."""

    _access: ServerAccess

    async def set_type_timeout(self, type: JobType, seconds: Duration) -> None:
        """Create a type, or change its activity timeout; see JobsService.set_type_timeout."""
        path = self._access.of_type(type)
        await self._access.call("PUT", path, {"timeout": check_seconds(seconds)})

    async def get_type_timeout(self, type: JobType) -> float:
        """Return a type's activity timeout in seconds; see JobsService.get_type_timeout."""
        found = await self._access.call("GET", self._access.of_type(type))
        return self._access.read(lambda form: float(form["timeout"]), found)

    async def clear_type_timeout(self, type: JobType) -> None:
        """Remove a type: its jobs stay, new jobs are refused; see JobsService.clear_type_timeout."""
        await self._access.call("DELETE", self._access.of_type(type))

    async def pause(self, type: JobType) -> None:
        """Stop accepting jobs of a type, in all processes, until `resume`; see JobsService.pause."""
        await self._access.call("POST", self._access.of_type(type, "/pause"))

    async def resume(self, type: JobType) -> None:
        """Accept jobs of a type again; see JobsService.resume."""
        await self._access.call("POST", self._access.of_type(type, "/resume"))

    async def paused(self, type: JobType) -> bool:
        """Return whether a type is paused."""
        return (await self.queue_state(type)).paused

    async def set_retention(
        self, type: JobType, *, keep: Duration | None = None, keep_failed: Duration | None = None
    ) -> None:
        """Set the time until finished jobs of a type are removed; see JobsService.set_retention."""
        path = self._access.of_type(type)
        kept = Retention(check_keep("keep", keep), check_keep("keep_failed", keep_failed))
        await self._access.call("PUT", path, wire.plain(kept))

    async def get_retention(self, type: JobType) -> Retention:
        """Return the retention of a type's finished jobs; see JobsService.get_retention."""
        found = await self._access.call("GET", self._access.of_type(type, "/retention"))
        return self._access.read(wire.retention_of, found)

    async def set_redaction(self, type: JobType, paths: Iterable[str]) -> None:
        """Set the secret fields of a type's jobs; see JobsService.set_redaction."""
        form = {"paths": [*Redaction(paths).paths]}
        await self._access.call("PUT", self._access.of_type(type, "/redaction"), form)

    async def get_redaction(self, type: JobType) -> Redaction:
        """Return the secret fields of a type's jobs; see JobsService.get_redaction."""
        found = await self._access.call("GET", self._access.of_type(type, "/redaction"))
        return self._access.read(lambda form: Redaction(form["paths"]), found)

    async def redactions(self) -> dict[JobType, Redaction]:
        """Return the types with secret fields, and these fields; see JobsService.redactions."""
        found = await self._access.call("GET", "/v1/redactions")
        return self._access.read(
            lambda form: {exact_type(wire.name_of(each["type"])): Redaction(each["paths"]) for each in form["types"]},
            found,
        )

    async def queue_state(self, type: JobType) -> QueueState:
        """Return the state of a type's queue; see JobsService.queue_state."""
        found = await self._access.call("GET", self._access.of_type(type, "/queue"))
        return self._access.read(wire.queue_state_of, found)

    async def last_ticks(self) -> dict[JobType, float]:
        """Return the time of the last tick of each periodic type in the store; see JobsService.last_ticks."""
        found = await self._access.call("GET", "/v1/ticks")
        return self._access.read(
            lambda form: {wire.name_of(each["type"]): wire.seconds_of(each["last"]) or 0.0 for each in form["ticks"]},
            found,
        )

    async def types(self) -> list[JobType]:
        """Return the types that exist, in the tuple layer's order."""
        found = await self._access.call("GET", "/v1/types")
        return self._access.read(lambda form: [wire.name_of(each["type"]) for each in form["types"]], found)

    async def supervision(self) -> dict[str, Any]:
        """Return the server's supervisor tree as plain data; see JobsService.supervision, which is no coroutine."""
        found: dict[str, Any] = await self._access.call("GET", "/v1/supervision")
        return found
