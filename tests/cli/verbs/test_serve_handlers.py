"""`serve` with handlers, as real processes that get real signals."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path

from jobs_service import JobsService, JobState
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, event_named, serving

APPLICATION = """
import asyncio, json, sys, time
from jobs_service import JobsService

jobs = JobsService("lmdb:store")

def tell(event, **fields):
    print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)

@jobs.handler("waits", slots=5, grace=0.1)
async def waits(job):
    tell("waits", id=job.id)
    try:
        await asyncio.Event().wait()
    finally:
        tell("told to end", id=job.id)

@jobs.handler("stubborn", grace=0.1)
async def stubborn():
    tell("stubborn")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@jobs.handler("thread", grace=0.1)
async def thread():
    tell("thread")
    await asyncio.to_thread(time.sleep, 1000)

@jobs.handler(("blocks", 1))
async def blocks():
    tell("blocks")
    time.sleep(1000)
"""


def test_handlers_run_with_options_from_a_file_until_a_signal_has_them_drained(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    settings = tmp_path / "settings.toml"
    settings.write_text("[handlers.waits]\nslots = 1\n[handlers.thread]\nslots = 1\n")
    with serving("application:jobs", cwd=tmp_path, env={"JOBS_SERVICE_SETTINGS": str(settings)}) as daemon:

        async def add(jobs: JobsService) -> None:
            for type, id in (("waits", "a"), ("waits", "b"), ("waits", "c"), ("stubborn", "s"), ("thread", "t")):
                await jobs.add(type, id)  # `serving` has said that the types are there

        arrange(f"lmdb:{tmp_path / 'store'}", add)
        began = [event_named_one_of(daemon, "waits", "stubborn", "thread") for _ in range(3)]
        assert set(began) == {"waits", "stubborn", "thread"}

        settings.write_text("[handlers.waits]\nslots = -1\n")
        daemon.send_signal(signal.SIGHUP)
        failed = event_named(daemon, "reload_failed")
        assert failed["error"].startswith("setting handlers.waits.slots=-1: ")
        assert failed["level"] == "error"

        settings.write_text("[handlers.waits]\nslots = 2\n[handlers.others]\nslots = 1\n")
        daemon.send_signal(signal.SIGHUP)
        assert event_named(daemon, "settings_without_handler")["types"] == ["others"]
        assert event_named(daemon, "reloaded")["types"] == ["waits", "stubborn", "thread", 'json:["blocks",1]']
        assert event_named(daemon, "waits")["id"] == "b"

        daemon.send_signal(signal.SIGTERM)
        event_named(daemon, "draining")
        assert {event_named(daemon, "told to end")["id"] for _ in range(2)} == {"a", "b"}
        event_named(daemon, "stopped")
        # A coroutine and a thread go on: it does not wait for them.
        assert event_named(daemon, "exit_forced")["level"] == "warning"
        assert daemon.wait(HANG) == 0

    async def look(jobs: JobsService) -> None:
        found = {job.id: (job.state, job.history[0].kind) async for job in jobs.list()}
        stopped = (JobState.PENDING, "stopped")
        assert found == {"a": stopped, "b": stopped, "c": (JobState.PENDING, "added"), "s": stopped, "t": stopped}

    arrange(f"lmdb:{tmp_path / 'store'}", look)


def test_a_second_signal_ends_it_at_once_also_while_a_handler_blocks_it(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    with serving("application:jobs", "--max-jobs", "1", cwd=tmp_path) as daemon:

        async def add(jobs: JobsService) -> None:
            await jobs.add(("blocks", 1), "x")

        arrange(f"lmdb:{tmp_path / 'store'}", add)
        event_named(daemon, "blocks")
        # Two of a kind might come as one.
        daemon.send_signal(signal.SIGTERM)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(HANG) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_a_second_signal_kills_the_commands_that_run(store: str, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    script = 'trap "" TERM; exec 3> "$0"; echo runs >&3; sleep 300'  # and so does its child

    async def add(jobs: JobsService) -> None:
        await jobs.add("command", "x", {"argv": ["sh", "-c", script, str(held)]})

    with serving("--store", store, "--commands", cwd=tmp_path) as daemon:
        arrange(store, add)
        with held.open() as pipe:
            assert pipe.readline() == "runs\n"
            daemon.send_signal(signal.SIGTERM)
            event_named(daemon, "draining")
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(HANG) == 128 + signal.SIGTERM
            assert select.select([pipe], [], [], HANG)[0] == [pipe]  # its end: nobody holds it any more


def test_commands_are_not_taken_from_an_applications_own_handler(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "own_commands.py").write_text(
        "from jobs_service import JobsService\n"
        "jobs = JobsService('memory:')\n"
        "@jobs.handler('command')\n"
        "async def command(): ...\n"
    )
    refused = invoke("serve", "own_commands:jobs", "--commands")
    assert refused.code == 2
    assert refused.error.startswith("type 'command' has a handler already: ")


def event_named_one_of(daemon: subprocess.Popen[str], *names: str) -> str:
    """Return the name of the daemon's next log event that has one of these names."""
    assert daemon.stderr is not None
    for line in daemon.stderr:
        name = str(json.loads(line)["event"])
        if name in names:
            return name
    raise AssertionError(f"the daemon ended without any of {names}")
