"""Every public operation takes hostile values, one argument at a time: it does what it was asked, or
refuses in one line; the store is unharmed and the service goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobsService, Settings
from tests.checker import assert_sound
from tests.hostile.inputs import hand_picked
from tests.hostile.objects import Mischief
from tests.hostile.targets import GROUPS
from tests.hostile.targets.operations import ANYWHERE
from tests.hostile.world import World, attempt
from tests.service.support import empty
from tests.stores import QUICKEST_AND_CLUSTER, StoreKind

LEAST_CALLS = 300
PROMPT = 60.0
"""Seconds after which a call is taken for hanging."""
STRIDE = {"memory": 19}
"""Each target meets one value in so many, others than the target beside it."""
LONG_STRIDE = 67


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


@pytest.mark.parametrize("kind", QUICKEST_AND_CLUSTER)
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
        "middleware",
        "provide",
        "include",
        "schedules",
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
    without_arguments |= {
        "asgi",
        "ask_process",
        "before_leaving",
        "bulk_actions",
        "listed",
        "outbox_changed",
        "outboxes",
        "process_id",
        "queue_states",
        "remote",
        "type_settings",
    }
    without_arguments.add("wall_time")
    for operation in {name for name in dir(JobsService) if not name.startswith("_")} - without_arguments:
        assert f"of {operation}" in names or f"timeout of {operation}" in names, operation
        if operation not in of_the_service:
            assert any(target.name.startswith("transaction: ") and operation in target.name for target in ANYWHERE)


def test_a_hostile_object_lets_its_mischief_out_where_it_is_asked() -> None:
    """The hostile objects are hostile: what refuses them has not asked them."""
    loud = [value.make() for value in hand_picked() if value.name.startswith("object: raising")]
    for value in loud:
        with pytest.raises(Mischief):
            repr(value)
