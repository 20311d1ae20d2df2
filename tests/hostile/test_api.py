"""Every public operation takes hostile values, one argument at a time and all at once: it does what it was asked, or
refuses in one line; the store is unharmed and the service goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import (
    InvalidSettings,
    JobNotFound,
    JobsError,
    JobsService,
    JobTransaction,
    NewJob,
    Settings,
    StoreError,
)
from tests.checker import assert_sound
from tests.hostile.inputs import dispose, hand_picked
from tests.hostile.objects import Mischief
from tests.hostile.strategies import JSON, MIXED
from tests.hostile.targets import GROUPS
from tests.hostile.targets.operations import ANYWHERE
from tests.hostile.world import WORK, World, attempt, complaint_about, same, same_json
from tests.service.support import empty
from tests.stores import EVERY_STORE, StoreKind, plain_settings

LEAST_CALLS = 1_000
PROMPT = 60.0
"""Seconds after which a call is taken for hanging."""
STRIDE = {"memory": 7}
"""Each target meets one value in so many, others than the target beside it."""
LONG_STRIDE = 29
EXAMPLES = {"memory": 100}
FEW_EXAMPLES = 30


def restarts(node: dict[str, Any]) -> int:
    """Return how often parts of the supervisor tree were started again."""
    own: int = node["restarts"]
    return own + sum(restarts(child) for child in node["children"])


async def opened(kind: StoreKind, directory: Path) -> World:
    """Return a world around a service that is entered already."""
    fast = Settings(notify_holdoff=0.0, durable=False)
    address = kind.address_in(directory)
    jobs = JobsService(address, settings=fast)
    await jobs.__aenter__()
    if kind.shared:
        await empty(jobs)
    world = World(jobs)
    await world.populate()
    return world


async def assert_unharmed(world: World) -> None:
    """Fail unless store, canaries and supervisor tree are as they should be."""
    await assert_sound(world.jobs.store)
    await world.assert_alive()
    assert restarts(world.jobs.supervision()) == 0


@contextmanager
def running_world(kind: StoreKind, directory: Path) -> Iterator[tuple[asyncio.Runner, World]]:
    """A world on a loop of its own, for tests that are no coroutines."""
    with asyncio.Runner() as runner:
        world = runner.run(opened(kind, directory))
        try:
            yield runner, world
            runner.run(assert_unharmed(world))
        finally:
            runner.run(world.jobs.__aexit__(None, None, None))


@pytest.mark.parametrize("kind", EVERY_STORE)
@pytest.mark.parametrize("group", sorted(GROUPS))
async def test_no_hand_picked_value_does_harm(kind: StoreKind, group: str, tmp_path: Path) -> None:
    world = await opened(kind, tmp_path)
    stride = STRIDE.get(kind.name, LONG_STRIDE)
    values = hand_picked()
    called = set()
    complaints = []
    try:
        for position, target in enumerate(GROUPS[group]):
            for value in values[position % stride :: stride]:
                called.add((target.name, value.name))
                async with asyncio.timeout(PROMPT):
                    complaint = await attempt(target, world, value.make())
                if complaint is not None:
                    complaints.append(f"{target.name} given {value.name}: {complaint}")
        assert complaints == [], "\n".join([f"{len(complaints)} of {len(called)} calls:", *complaints[:40]])
        assert kind.name != "memory" or len(called) >= LEAST_CALLS
        await assert_unharmed(world)
    finally:
        await world.jobs.__aexit__(None, None, None)


def test_every_public_operation_is_a_target() -> None:
    names = " ".join(target.name for group in GROUPS.values() for target in group)
    of_the_service = {"subscribe", "subscribe_many", "wait", "stop_and_remove", "transact", "result", "run"}
    of_the_service |= {
        "handler",
        "every",
        "cron",
        "commands",
        "configure",
        "reload",
        "within",
        "queue_state",
        "counts",
        "throughput",
        "page",
        "oldest_ready",
        "get_retention",
        "set_redaction",
        "get_redaction",
        "quiet_process",
        "resume_process",
        "stop_process",
    }
    without_arguments = {"types", "store", "supervision", "settings", "handlers", "periodic", "last_ticks"}
    without_arguments |= {"redactions", "slot_uses", "processes"}
    # The arguments of these are checked by http, whose interfaces they are for.
    without_arguments |= {"asgi", "ask_process", "before_leaving", "listed", "process_id", "remote", "type_settings"}
    without_arguments.add("wall_time")
    for operation in {name for name in dir(JobsService) if not name.startswith("_")} - without_arguments:
        assert f"of {operation}" in names or f"timeout of {operation}" in names, operation
        if operation not in of_the_service:
            assert any(target.name.startswith("transaction: ") and operation in target.name for target in ANYWHERE)


# All arguments at once

GOOD = {
    "type": st.just(WORK),
    "data": st.just({"good": True}),
    "priority": st.integers(-3, 3),
    "run_at": st.none(),
    "if_exists": st.sampled_from(["error", "resubmit", "ignore"]),
    "outcome": st.just("succeeded"),
}


def either(name: str, hostile: st.SearchStrategy[Any] = MIXED) -> st.SearchStrategy[Any]:
    """Draw a good value half of the time, so that the others are looked at too."""
    return st.one_of(GOOD[name], hostile)


def refused_properly(error: Exception) -> None:
    """Fail unless an error is the project's, in one line."""
    assert isinstance(error, JobsError), repr(error)[:300]
    assert complaint_about(error) is None


@pytest.mark.parametrize("kind", EVERY_STORE)
def test_no_mixture_of_arguments_does_harm(kind: StoreKind, tmp_path: Path) -> None:
    with running_world(kind, tmp_path) as (runner, world):

        async def life(id: Any, type: Any, data: Any, priority: Any, run_at: Any, rule: Any, outcome: Any) -> None:
            jobs = world.jobs
            job = await jobs.add(type, id, data, priority=priority, run_at=run_at, if_exists=rule)
            assert same(job.id, id)
            assert same(job.type, type)
            assert same(job.priority, priority)
            assert same_json((await jobs.get(type, id)).data, data)
            worker = await jobs.accept(type, timeout=0, due_by=run_at, max_priority=priority)
            if worker is not None:
                assert (worker.type, worker.id) == (job.type, job.id)
                await worker.update(data)
                await jobs.resubmit(type, id, data=data, priority=priority, run_at=run_at)
                await worker.finish(data, outcome=outcome)
            await jobs.transact(lambda tx: tx.remove(type, id))

        async def attempted(id: Any, *arguments: Any) -> None:
            try:
                await life(id, *arguments)
            except Exception as error:
                refused_properly(error)
            async for job in world.jobs.list(WORK):
                if job.id not in ("finished", "scheduled"):
                    await world.jobs.remove(WORK, job.id, force=True)

        @settings(max_examples=EXAMPLES.get(kind.name, FEW_EXAMPLES))
        @given(
            st.one_of(st.just("x"), MIXED),
            either("type"),
            either("data"),
            either("priority"),
            either("run_at"),
            either("if_exists"),
            either("outcome"),
        )
        def examples(id: Any, type: Any, data: Any, priority: Any, run_at: Any, rule: Any, outcome: Any) -> None:
            runner.run(attempted(id, type, data, priority, run_at, rule, outcome))

        examples()


@pytest.mark.parametrize("kind", EVERY_STORE)
def test_json_comes_back_equal_or_is_refused(kind: StoreKind, tmp_path: Path) -> None:
    with running_world(kind, tmp_path) as (runner, world):

        async def there_and_back(data: Any) -> None:
            try:
                await world.jobs.add(WORK, "json", data, if_exists="resubmit")
            except JobsError as error:
                refused_properly(error)
            else:
                assert same_json((await world.jobs.get(WORK, "json")).data, data)

        @settings(max_examples=EXAMPLES.get(kind.name, FEW_EXAMPLES))
        @given(JSON)
        def examples(data: Any) -> None:
            runner.run(there_and_back(data))

        examples()


@pytest.mark.parametrize("kind", EVERY_STORE)
def test_no_mixture_is_added_in_part(kind: StoreKind, tmp_path: Path) -> None:
    with running_world(kind, tmp_path) as (runner, world):

        async def add(fields: list[Any]) -> None:
            new = [NewJob(f"n{position}", *field) for position, field in enumerate(fields)]
            present = {job.id async for job in world.jobs.list(WORK)}
            try:
                added = await world.jobs.transact(lambda tx: tx.add_many(WORK, new))
            except JobsError as error:
                refused_properly(error)
                assert {job.id async for job in world.jobs.list(WORK)} == present
            else:
                for job, given in zip(added, new, strict=True):
                    assert same_json((await world.jobs.get(WORK, job.id)).data, given.data)
                    await world.jobs.remove(WORK, job.id)

        @settings(max_examples=EXAMPLES.get(kind.name, FEW_EXAMPLES))
        @given(st.lists(st.tuples(either("data", JSON), either("priority"), either("run_at")), max_size=4))
        def examples(fields: list[Any]) -> None:
            runner.run(add(fields))

        examples()


# Functions that end in other ways


class Abrupt(BaseException):
    """What is no Exception."""


ENDINGS = [
    Abrupt,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    StopAsyncIteration,
    MemoryError,
]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", EVERY_STORE)
async def test_whatever_a_transaction_function_raises_comes_out_and_nothing_is_written(
    kind: StoreKind, ending: type[BaseException], tmp_path: Path
) -> None:
    world = await opened(kind, tmp_path)

    async def work(tx: JobTransaction) -> None:
        await tx.add(WORK, "must not stay")
        tx.kv[b"own/key"] = b"must not stay"
        raise ending

    try:
        async with asyncio.timeout(PROMPT):
            with pytest.raises(ending):
                await world.jobs.transact(work)
        with pytest.raises(JobNotFound):
            await world.jobs.get(WORK, "must not stay")
        assert await world.jobs.transact(lambda tx: tx.kv.get(b"own/key")) is None
        await assert_unharmed(world)
    finally:
        await world.jobs.__aexit__(None, None, None)


# Settings, and what a service is made of


def refusal(call: Any, *arguments: Any, **keywords: Any) -> str | None:
    """Call; return what is wrong with how it refused, None for a proper refusal or none at all."""
    try:
        call(*arguments, **keywords)
    except JobsError as error:
        return complaint_about(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


@pytest.mark.parametrize("name", ["transaction_timeout", "activity_batch", "durable"])
async def test_no_value_of_a_setting_does_harm(name: str) -> None:
    given = [(value.name, value.make()) for value in hand_picked()]
    found = {which: complaint for which, value in given if (complaint := refusal(Settings, **{name: value}))}
    for _, value in given:
        dispose(value)
    assert found == {}


def test_no_name_of_a_setting_does_harm() -> None:
    names = [value.make() for value in hand_picked() if value.name.startswith("text")]
    unknown = [*names, "_env_file", "_cli_parse_args", "model_config", "self ", "__class__"]
    found = {name[:40]: complaint for name in unknown if (complaint := refusal(Settings, **{name: 1}))}
    assert found == {}


@pytest.mark.parametrize("argument", ["settings", "supervise", "sources"])
async def test_a_service_is_made_of_nothing_but_what_it_takes(argument: str) -> None:
    given = [(value.name, value.make()) for value in hand_picked()]
    found = {
        which: complaint
        for which, value in given
        if (complaint := refusal(JobsService, "memory:", **{"settings": plain_settings(), argument: value}))
    }
    for _, value in given:
        dispose(value)
    assert found == {}


async def test_no_address_of_a_store_does_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = [(value.name, value.make()) for value in hand_picked()]
    texts = [value for value in hand_picked() if value.name.startswith("text")]
    given += [(f"lmdb: {value.name}", "lmdb:" + value.make()) for value in texts]
    given += [(f"fdb: {value.name}", "fdb:" + value.make()) for value in texts]
    complaints = []
    for which, value in given:
        try:
            async with JobsService(value, supervise=False, settings=Settings(lmdb_map_size=1 << 20)) as jobs:
                await jobs.set_type_timeout(WORK, 60)
        except (InvalidSettings, StoreError) as error:
            # What names the store is in the message as it was given: paths may be long.
            if complaint := complaint_about(JobsError(re.sub("x{50,}", "", str(error)).replace("\u0301", ""))):
                complaints.append(f"{which}: {complaint}")
        except Exception as error:
            complaints.append(f"{which}: {type(error).__name__}: {str(error)[:200]}")
    for _, value in given:
        dispose(value)
    assert complaints == []


def test_a_hostile_object_lets_its_mischief_out_where_it_is_asked() -> None:
    """The hostile objects are hostile: what refuses them has not asked them."""
    loud = [value.make() for value in hand_picked() if value.name.startswith("object: raising")]
    for value in loud:
        with pytest.raises(Mischief):
            repr(value)
