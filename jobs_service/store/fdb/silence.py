"""Finds the reason of a silent cluster, for the errors of waiting callers."""

from __future__ import annotations

import asyncio
from typing import Final

from jobs_service.errors import StoreUnavailable
from jobs_service.store.fdb.cluster_file import Cluster
from jobs_service.store.fdb.connection import Connection
from jobs_service.store.fdb.diagnosis import Reason, why_silent
from jobs_service.store.fdb.directory import Location

_SILENT: Final = 1.0
"""Seconds without a first answer before the store looks for the reason."""


class SilenceExplainer(Connection):
    """The part of a store that explains a silent cluster."""

    # The reason that was found last; None while the cluster answers.
    _silence: Reason | None
    _explaining: bool
    _looking: asyncio.Future[Reason | None] | None
    # Where the directory was found; None before the cluster's first answer.
    _location: Location | None

    def _explain_later(self) -> None:
        """Find the reason of the silence in the background: the error of the next failing call names it."""
        if self._location is not None and self._cluster is not None and not self._explaining and self._opened:
            self._explaining = True
            self._run_in_background(self._explain(self._cluster))

    async def _explain(self, cluster: Cluster) -> None:
        try:
            self._silence = await self._reason(cluster)
        finally:
            self._explaining = False

    async def _reason(self, cluster: Cluster) -> Reason | None:
        """Return the reason of the silence, which takes seconds to find.

        The search outlives a canceled caller, and later callers share it: it may take longer than each of them waits.
        """
        assert self._loop is not None
        if self._looking is None:
            self._looking = self._loop.run_in_executor(self._executor, why_silent, self._database, cluster)
            self._looking.add_done_callback(self._looked)
        return await asyncio.shield(self._looking)

    def _looked(self, looking: asyncio.Future[Reason | None]) -> None:
        self._looking = None
        looking.exception()  # Retrieved, so that asyncio does not complain if nobody waits for it.

    async def _explain_silence(self, looking: asyncio.Future[Location]) -> None:
        """Wait for the cluster's first answer; if it is late, find out why.

        Raises:
            StoreUnavailable: it will never come.
        """
        assert self._loop is not None
        await asyncio.wait([looking], timeout=_SILENT)
        if looking.done() or self._cluster is None:
            return
        self._silence = await self._reason(self._cluster)
        if self._silence is not None and self._silence.lasting and not looking.done():
            raise StoreUnavailable(self._silence.text)
