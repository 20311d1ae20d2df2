"""What a store on a cluster tells of its work, and how it marks its transactions for the cluster's operators."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import Settings
from jobs_service.errors import InvalidSettings
from jobs_service.settings import Settings as PlainSettings
from jobs_service.sources import Sources
from jobs_service.store import open_address
from jobs_service.store.base import background, in_background
from jobs_service.store.fdb import FdbStore


class Options:
    """Notes what is chosen for a transaction."""

    def __init__(self) -> None:
        self.chosen: list[object] = []
        self.options = self

    def set_priority_batch(self) -> None:
        """Note it."""
        self.chosen.append("batch")

    def set_tag(self, tag: str) -> None:
        """Note it."""
        self.chosen.append(tag)


def chosen(**settings: Any) -> list[object]:
    """Return what a store chooses for its next transaction."""
    store = open_address("fdb:", Settings(**settings), Sources(0))
    assert isinstance(store, FdbStore)
    options = Options()
    store._choose_options(options)
    return options.chosen


async def test_only_what_is_done_in_the_background_and_by_tasks_of_it_has_batch_priority() -> None:
    async def look() -> bool:
        return in_background()

    assert chosen() == []
    with background():
        assert chosen() == ["batch"]
        assert await asyncio.create_task(look())
    assert not await asyncio.create_task(look())
    assert chosen() == []


def test_transactions_have_the_tag_that_the_settings_name() -> None:
    assert chosen(fdb_tag="jobs") == ["jobs"]


@pytest.mark.parametrize("tag", ["more than sixteen", "ümlaut", "new\nline"])
def test_a_tag_that_cannot_be_is_refused(tag: str) -> None:
    with pytest.raises(InvalidSettings, match="fdb_tag"):
        PlainSettings(fdb_tag=tag)
