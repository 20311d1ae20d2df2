"""Asking for replications: one job for each, with credentials that nobody sees."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobs_service import JobsService, JobState, JobTransaction
from jobs_service.layer.keyspace import Keyspace, pack_id
from jobs_service.replication import replicate, replications
from jobs_service.replication.stored import CONTINUOUS, ONE_SHOT, CredentialsMissing, take_wanted, unmasked
from jobs_service.store import Transaction

SOURCE, TARGET = "http://source.example:5984/db", "http://target.example:5984/db"
SECRET = "hunter2-marker"


@pytest.fixture
async def jobs() -> AsyncIterator[JobsService]:
    async with JobsService("memory:", supervise=False) as service:
        yield service


async def stored(jobs: JobsService) -> dict[bytes, bytes]:
    """Return the application's keys."""

    async def read(tx: JobTransaction) -> list[tuple[bytes, bytes]]:
        return list(await tx.kv.get_range(b"jobs_service/", b"jobs_service0"))

    return dict(await jobs.transact(read))


async def test_the_same_replication_is_one_job(jobs: JobsService) -> None:
    one = await replicate(jobs, SOURCE, TARGET)
    other = await replicate(jobs, {"url": SOURCE}, TARGET + "/", worker_batch_size=10)
    assert one.id == other.id
    assert [job.id async for job in replications(jobs)] == [one.id]
    assert (await jobs.get(ONE_SHOT, one.id)).data["options"]["worker_batch_size"] == 10


async def test_very_many_ids_of_documents_are_kept_beside_the_job(jobs: JobsService) -> None:
    ids = [f"customer-{number:032}" for number in range(20_000)]
    job = await replicate(jobs, SOURCE, TARGET, doc_ids=ids)
    assert job.data["options"]["doc_ids"] == len(ids)
    assert (await unmasked(jobs, ONE_SHOT, str(job.id), job.data["options"]))["doc_ids"] == ids
    assert (await replicate(jobs, SOURCE, TARGET, doc_ids=ids)).id == job.id
    await jobs.remove(job.type, job.id)
    for _ in range(2):
        await replicate(jobs, SOURCE, TARGET)
    assert not any(b"doc_ids" in key for key in await stored(jobs))


async def test_another_password_does_not_make_another_replication(jobs: JobsService) -> None:
    one = await replicate(jobs, "http://ada:one@source.example/db", TARGET)
    assert (await replicate(jobs, "http://ada:two@source.example/db", TARGET)).id == one.id


async def test_what_changes_the_result_makes_another_replication(jobs: JobsService) -> None:
    asked: list[dict[str, Any]] = [{}, {"doc_ids": ["a"]}, {"selector": {"a": 1}}, {"since_seq": 5}, {"filter": "a/b"}]
    ids = {(await replicate(jobs, SOURCE, TARGET, **each)).id for each in asked}
    assert len(ids) == len(asked)


async def test_a_continuous_one_is_of_another_type_and_has_the_same_id(jobs: JobsService) -> None:
    # The id names the checkpoints as well, which both share.
    once, for_ever = await replicate(jobs, SOURCE, TARGET), await replicate(jobs, SOURCE, TARGET, continuous=True)
    assert (once.type, for_ever.type, once.id) == (ONE_SHOT, CONTINUOUS, for_ever.id)


async def test_one_that_has_ended_runs_again_and_counts_on(jobs: JobsService) -> None:
    await replicate(jobs, SOURCE, TARGET)
    running = await jobs.accept(ONE_SHOT)
    assert running is not None
    await running.finish({**running.data, "statistics": {"docs_read": 7}})
    again = await replicate(jobs, SOURCE, TARGET)
    assert (again.state, again.data["statistics"]) == (JobState.PENDING, {"docs_read": 7})


async def test_a_continuous_one_that_runs_goes_on(jobs: JobsService) -> None:
    await replicate(jobs, SOURCE, TARGET, continuous=True)
    await jobs.accept(CONTINUOUS)
    again = await replicate(jobs, SOURCE, TARGET, continuous=True)
    assert (again.state, bool(again.resubmit)) == (JobState.RUNNING, False)


class TestCredentials:
    @pytest.mark.parametrize(
        "source",
        [
            f"http://ada:{SECRET}@source.example/db",
            {"url": SOURCE, "auth": {"basic": {"username": "ada", "password": SECRET}}},
            {"url": SOURCE, "headers": {"Cookie": f"AuthSession={SECRET}"}},
            {"url": SOURCE, "headers": {"X-Whatever": SECRET}},
            {"url": SOURCE, "proxy": f"http://ada:{SECRET}@proxy.example"},
            {"url": SOURCE, "tls": {"key_file": "key.pem", "key_password": SECRET}},
        ],
        ids=["url", "auth", "cookie", "header", "proxy", "key"],
    )
    async def test_that_are_inline_are_not_in_the_job_and_come_back_for_its_run(
        self, jobs: JobsService, source: Any
    ) -> None:
        job = await replicate(jobs, source, TARGET)
        found = await jobs.get(job.type, job.id)
        assert SECRET not in json.dumps(found.to_dict()) + repr(found) + str(found.id)
        assert (await unmasked(jobs, ONE_SHOT, str(job.id), found.data["options"]))["source"] == source

    async def test_of_very_many_jobs_are_gone_after_some_more_were_asked_for(
        self, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jobs_service.replication.stored._SWEPT_TOGETHER", 3)
        made = [await replicate(jobs, f"http://ada:{SECRET}@source.example/{n}", TARGET) for n in range(10)]
        for job in made[:5]:
            await jobs.remove(job.type, job.id)
        for _ in range(8):  # twice around, wherever it stands now
            await replicate(jobs, SOURCE, TARGET)
        kept = {key.decode().split("/")[-2] for key in await stored(jobs) if b"/credentials/" in key}
        assert kept == {str(job.id) for job in made[5:]}

    async def test_of_a_job_that_cannot_be_read_stop_no_other(self, jobs: JobsService) -> None:
        damaged = await replicate(jobs, f"http://ada:{SECRET}@source.example/db", TARGET)

        keyspace = Keyspace(await jobs.store.prefix(), jobs.store.limits.key)
        record = keyspace.of(ONE_SHOT).data + pack_id(damaged.id)

        async def damage(transaction: Transaction) -> None:
            assert await transaction.get(record) is not None
            transaction.set(record, b"damaged")

        await jobs.store.transact(damage)
        other = await replicate(jobs, SOURCE, TARGET)
        assert (await jobs.get(ONE_SHOT, other.id)).state is JobState.PENDING
        assert any(b"/credentials/" in key for key in await stored(jobs))

    @pytest.mark.parametrize("continuous", [False, True])
    async def test_of_one_that_runs_are_those_of_the_next_run(self, jobs: JobsService, continuous: bool) -> None:
        job = await replicate(jobs, f"http://ada:{SECRET}@source.example/db", TARGET, continuous=continuous)
        runs = await jobs.accept(job.type)
        assert runs is not None
        await replicate(jobs, "http://ada:another@source.example/db", TARGET, continuous=continuous)
        found = await jobs.get(job.type, job.id)
        assert SECRET in (await unmasked(jobs, str(job.type), str(job.id), found.data["options"]))["source"]
        data = await take_wanted(jobs, runs)
        assert "another" in (await unmasked(jobs, str(job.type), str(job.id), data["options"]))["source"]
        assert not any(SECRET.encode() in value for value in (await stored(jobs)).values())
        await replicate(jobs, "http://source.example/db", TARGET, continuous=continuous)
        await take_wanted(jobs, runs)
        assert not any(b"another" in value for value in (await stored(jobs)).values())

    async def test_that_another_store_keeps_are_missed_in_plain_words(self, jobs: JobsService) -> None:
        job = await replicate(jobs, f"http://ada:{SECRET}@source.example/db", TARGET)
        async with JobsService("memory:", supervise=False) as other:
            with pytest.raises(CredentialsMissing, match="not in this store"):
                await unmasked(other, ONE_SHOT, str(job.id), job.data["options"])
