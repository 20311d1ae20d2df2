"""How much of a job's history is kept by those who do not know how much its handler keeps."""

from __future__ import annotations

from jobs_service import Outcome, run_data
from jobs_service.layer import creation, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.record import Record
from jobs_service.layer.running_jobs import RunReport
from jobs_service.run_data import HistoryKind
from tests.layer.moves import accept, lose_all
from tests.layer.support import Layer, layer
from tests.virtual_time import EPOCH, in_virtual_time


async def record(found: Layer) -> Record:
    """Return the record of the job "a", after a look at the whole store."""
    await found.assert_sound()
    raw = await found.store.read(lambda transaction: transaction.get(found.place("a")[0].data + found.place("a")[2]))
    assert raw is not None
    return Record.decode(raw)


def kinds(told: Record) -> list[HistoryKind]:
    """Return the kinds of a job's events, oldest first."""
    return [event.kind for event in reversed(run_data.history_of(told.run_data))]


@in_virtual_time
async def test_those_who_do_not_know_how_many_events_are_kept_keep_as_many_as_there_are() -> None:
    async with layer() as found:
        await found.add("a")
        for _ in range(20):
            lock = await accept(found, max_history=40)
            told = RunReport(None, None, "E: no", max_history=40)
            await found.transact(
                lambda unit, lock=lock, told=told: running_jobs.crash(unit, found.place("a"), lock, told, EPOCH)  # type: ignore[misc]
            )
        assert len(kinds(await record(found))) == 40
        lock = await accept(found, max_history=40)
        await lose_all(found)
        assert kinds(await record(found))[-2:] == [HistoryKind.STARTED, HistoryKind.LOST]
        lock = await accept(found, max_history=40)
        await found.transact(
            lambda unit: running_jobs.finish(
                unit, found.place("a"), lock, None, Outcome.FAILED, RunReport(max_history=40)
            )
        )
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), Spec("new", 0, None)))
        assert (len(kinds(await record(found))), kinds(await record(found))[-1]) == (40, HistoryKind.ADDED)
