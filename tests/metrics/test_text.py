"""What a scrape finds: every documented name and no other, and the values after known work."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jobs_service import JobError, JobsService, Outcome, metrics
from jobs_service.metrics import OTHERS
from jobs_service.model.process import OutboxInfo
from jobs_service.replication import replicate
from jobs_service.supervision import Supervising
from tests.docs.pages import read
from tests.http.support import served
from tests.metrics.support import parsed, scraped, value
from tests.service.support import eventually
from tests.stores import EVERY_STORE, QUICKEST_AND_CLUSTER, StoreKind

DOCUMENTED = {
    name: (kind, set(re.findall(r"`(\w+)`", labels.partition(":")[0])))
    for name, kind, labels in re.findall(
        r"^\| `(jobs_service_\w+)` \| (\w+) \| (.*?) \|", read("docs/metrics.md"), re.MULTILINE
    )
}


async def work(jobs: JobsService) -> None:
    """Leave jobs in each state of two types, with a handler that runs one of them."""
    await jobs.set_type_timeout("email", 30)
    await jobs.set_type_timeout(("a", 1), 30)
    for number in range(6):
        await jobs.add("email", f"{number}", run_at=4e9 if number == 5 else None)
    first = await jobs.accept("email")
    second = await jobs.accept("email")
    third = await jobs.accept("email")
    assert first is not None
    assert second is not None
    assert third is not None
    await first.finish()
    await second.finish(outcome=Outcome.FAILED, error=JobError("E", "no"))
    await jobs.pause(("a", 1))
    await replicate(jobs, "http://source.example/db", "http://target.example/db")
    copying = await jobs.accept("replication")
    assert copying is not None
    await copying.progress(3, 10)


@pytest.mark.parametrize("kind", QUICKEST_AND_CLUSTER)
async def test_every_documented_metric_is_there_with_its_labels_and_no_other(kind: StoreKind, tmp_path: Path) -> None:
    async with JobsService(kind.address_in(tmp_path)) as jobs:
        await work(jobs)

        @jobs.handler("email")
        async def email() -> None: ...

        ready = asyncio.Event()
        task = asyncio.create_task(jobs.run(started=ready.set))
        await ready.wait()
        jobs.outbox_changed(OutboxInfo("sqlite:app.db", 3, 60.0))
        text = (await metrics.text(jobs)).decode()
        task.cancel()
        await asyncio.wait([task])
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = family.type, labels
        assert family.documentation
    assert found == DOCUMENTED


@pytest.mark.parametrize("kind", EVERY_STORE)
async def test_the_values_are_those_of_the_work_that_was_done(kind: StoreKind, tmp_path: Path) -> None:
    async with JobsService(kind.address_in(tmp_path)) as jobs:
        await work(jobs)
        before = jobs.store.metrics()
        samples = await scraped(jobs)
        states = {"ready": 2, "scheduled": 1, "running": 1, "succeeded": 1, "failed": 1, "canceled": 0}
        for state, number in states.items():
            assert value(samples, "jobs_service_jobs", type="email", state=state) == number
        events = {"added": 6, "started": 3, "succeeded": 1, "failed": 1, "crashed": 0, "lost": 0}
        for event, number in events.items():
            assert value(samples, "jobs_service_events_total", type="email", event=event) == number
        assert value(samples, "jobs_service_wait_seconds_count", type="email") == 3
        assert value(samples, "jobs_service_run_seconds_count", type="email") == 2
        assert value(samples, "jobs_service_run_seconds_bucket", type="email", le="+Inf") == 2
        assert value(samples, "jobs_service_oldest_ready_seconds", type="email") > 0
        assert value(samples, "jobs_service_paused", type="email") == 0
        assert value(samples, "jobs_service_paused", type='json:["a",1]') == 1
        assert value(samples, "jobs_service_types") == 3
        ends = {"source": "http://source.example/db", "target": "http://target.example/db"}
        (id,) = [dict(labels)["id"] for name, labels in samples if name == "jobs_service_replication_failing"]
        assert value(samples, "jobs_service_replication_changes_pending", id=id, **ends) == 7
        assert value(samples, "jobs_service_up") == 1
        assert value(samples, "jobs_service_info", version="0.1.0", store=kind.name) == 1
        assert value(samples, "jobs_service_store_commits_total") == before["commits"]
        assert value(samples, "jobs_service_store_transactions_total") >= before["transactions"]
        assert value(samples, "jobs_service_store_commit_seconds_count") == sum(jobs.store.commit_times.counts)
        # The service's own actors make watches and drop them: compare where none did meanwhile.
        while True:
            watches = jobs.store.metrics()["watches"]
            samples = await scraped(jobs)
            if jobs.store.metrics()["watches"] == watches > 0:
                break
        assert value(samples, "jobs_service_store_watches") == watches


async def test_slots_are_those_of_the_handlers_that_run() -> None:
    jobs = JobsService("memory:")
    runs, ends = asyncio.Event(), asyncio.Event()

    @jobs.handler("slow", slots=7)
    async def slow() -> None:
        runs.set()
        await ends.wait()

    async with jobs:
        await jobs.enqueue(slow)
        task = asyncio.create_task(jobs.run())
        await runs.wait()
        samples = await scraped(jobs)
        ends.set()
        task.cancel()
        await asyncio.wait([task])
        assert value(samples, "jobs_service_slots", type="slow") == 7
        assert value(samples, "jobs_service_busy_slots", type="slow") == 1
        assert value(samples, "jobs_service_heartbeats_missed_total", type="slow") == 0
        assert ("jobs_service_slots", (("type", "slow"),)) not in await scraped(jobs)


async def test_restarts_are_counted() -> None:
    async with JobsService("memory:") as jobs:
        before = value(await scraped(jobs), "jobs_service_restarts_total")
        assert before == Supervising.total_restarts
        root = jobs._tree.root
        assert root is not None
        server = root.child("type server")
        assert server is not None
        assert server._task is not None
        server._task.cancel()

        async def counted() -> bool:
            return value(await scraped(jobs), "jobs_service_restarts_total") == before + 1

        await eventually(counted)


async def test_without_the_store_the_process_still_tells_of_itself() -> None:
    jobs = JobsService("memory:")
    samples = await scraped(jobs)  # not open
    assert value(samples, "jobs_service_up") == 0
    assert not [name for name, _ in samples if name.startswith(("jobs_service_jobs", "jobs_service_types"))]
    assert value(samples, "jobs_service_store_commits_total") == 0
    async with jobs:
        assert value(await scraped(jobs), "jobs_service_up") == 1


async def test_a_registry_of_ones_own_is_scraped_on_the_loop_and_on_another_thread() -> None:
    registry = CollectorRegistry()
    async with JobsService("memory:") as jobs:
        own = metrics.collector(jobs)
        registry.register(own)
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "1")
        assert value(parsed(generate_latest(registry)), "jobs_service_up") == 0  # nobody has looked at the store yet
        await own.refresh()
        assert value(parsed(generate_latest(registry)), "jobs_service_jobs", type="email", state="ready") == 1
        await jobs.add("email", "2")
        elsewhere = parsed(await asyncio.to_thread(generate_latest, registry))
        assert value(elsewhere, "jobs_service_jobs", type="email", state="ready") == 2


async def test_the_http_interface_answers_with_them() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == metrics.CONTENT_TYPE
        assert value(parsed(answer.content), "jobs_service_types") == 1


# Types as labels


async def test_types_beyond_the_bound_share_a_label_and_the_others_keep_theirs() -> None:
    async with JobsService("memory:") as jobs:
        for number in range(8):
            await jobs.set_type_timeout(f"type{number}", 30)
            for job in range(number):
                await jobs.add(f"type{number}", f"{job}")
        own = metrics.collector(jobs, most_types=3)
        registry = CollectorRegistry()
        registry.register(own)
        await own.refresh()
        samples = parsed(generate_latest(registry))

        def ready(type: str) -> float:
            return value(samples, "jobs_service_jobs", type=type, state="ready")

        assert [ready(type) for type in ("type7", "type6", "type5", OTHERS)] == [7, 6, 5, 0 + 1 + 2 + 3 + 4]
        assert value(samples, "jobs_service_types") == 8
        assert {dict(labels).get("type") for _, labels in samples} == {None, "type7", "type6", "type5", OTHERS}
        for number in range(10):
            await jobs.add("type1", f"more{number}")
        await own.refresh()
        samples = parsed(generate_latest(registry))
        assert [ready(type) for type in ("type7", "type6", "type5", OTHERS)] == [7, 6, 5, 20]


async def test_types_of_every_kind_are_labels_that_prometheus_reads() -> None:
    kinds = [
        "new\nline",
        'quo"te',
        "back\\slash",
        "",
        "json:1",
        b"\x00\xff",
        7,
        (1, b"\x00", "a"),
        "é\u202e",
        "x" * 400,
    ]
    async with JobsService("memory:") as jobs:
        for type in kinds:
            await jobs.set_type_timeout(type, 30)  # type: ignore[arg-type]
        samples = await scraped(jobs)
    assert len({dict(labels).get("type") for name, labels in samples if name == "jobs_service_paused"}) == len(kinds)


def test_without_the_extra_one_line_says_what_to_install() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None\nimport jobs_service.metrics"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    said = done.stderr.rstrip().splitlines()[-1].partition(": ")[2]
    assert said == "metrics need prometheus-client: pip install 'jobs-service[metrics]'"
