"""Django's tasks with an outbox: each is enqueued with the rows of its transaction, and has its effect on rows once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from django.db import transaction

from tests.django import tasks
from tests.django.support import BASE, ERRORS, configured, database
from tests.outbox.support import Place, relaying
from tests.service.support import eventually

Status = BASE.TaskResultStatus


def test_a_task_is_enqueued_with_the_rows_or_not_at_all(place: Place, tmp_path: Path) -> None:
    place.run("create table effects (number integer)")
    tasks.USED.clear()
    with database(place), configured("default", "slow", outbox="own", store=f"lmdb:{tmp_path / 'store'}") as backend:
        assert backend.check() == []
        with transaction.atomic(using="own"):
            gone = tasks.once.using(queue_name="slow").enqueue(6)
            assert (gone.status, gone.enqueued_at) == (Status.READY, None)
            transaction.set_rollback(True, using="own")
        for id in (gone.id, "\0", "\ud800", "' or true --"):
            with pytest.raises(ERRORS.TaskResultDoesNotExist):
                backend.get_result(id)
        with transaction.atomic(using="own"):
            result = tasks.once.enqueue(7)
        assert tasks.once.get_result(result.id) == result  # no relay has moved it yet

        async def move_and_run() -> None:
            async def is_done() -> bool:
                return [job.state async for job in jobs.list("django.default")] == ["finished"]

            async with backend.jobs.asynchronous as jobs, relaying(jobs, place.url):
                running = asyncio.create_task(jobs.run())
                await eventually(is_done)
                running.cancel()
                await asyncio.wait([running])

        asyncio.run(move_and_run())
        result.refresh()
        assert result.status == Status.SUCCESSFUL
        assert result.enqueued_at <= result.started_at
    assert [each.connection for each in tasks.USED] == [None]  # closed at the end of the task's thread
    assert place.run("select number from effects") == [(7,)]
