"""The first child of the tree: opens the keyspace before any other child reads a job's key."""

from __future__ import annotations

from jobs_service.actors.context import Context
from jobs_service.supervision import Actor


class KeyspaceKeeper(Actor):
    """Opens the keyspace when it starts; later children rely on that."""

    def __init__(self, context: Context) -> None:
        super().__init__("keyspace")
        self._context = context

    async def init(self) -> None:
        await self._context.retried(self._context.open_keyspace)
