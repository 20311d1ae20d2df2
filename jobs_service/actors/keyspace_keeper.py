"""The first child of the tree: finds out where the jobs' keys are, before any other child reads one."""

from __future__ import annotations

from jobs_service.actors.context import Context
from jobs_service.supervision import Actor


class KeyspaceKeeper(Actor):
    """Opens the keyspace when it starts; the children that are started after it rely on that."""

    def __init__(self, context: Context) -> None:
        super().__init__("keyspace")
        self._context = context

    async def init(self) -> None:
        await self._context.retried(self._context.open_keyspace)
