"""The sample application, served by a process, and what the page on FoundationDB has a client ask of it."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator

import pytest

from jobs_service import JobsService, JobTransaction
from jobs_service.sample import TOTAL
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, serving
from tests.docs.pages import examples

_, COMPOSE, _ = examples("docs/foundationdb.md", "sh")
COMMANDS = re.findall(r"^docker compose run --rm client (.*?)(?:\s+#.*)?$", COMPOSE, re.MULTILINE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store whose jobs a daemon runs."""
    directory = tmp_path_factory.mktemp("sample")
    store = f"lmdb:{directory / 'store'}"
    with serving("jobs_service.sample:jobs", cwd=directory, env={"JOBS_SERVICE_STORE": store}):
        yield store


def test_what_the_page_has_the_client_run_works(invoke: Invoke, served: str) -> None:
    ended = {command: invoke("--store", served, *shlex.split(command)) for command in COMMANDS}
    assert {command: end.err for command, end in ended.items() if end.code != 0} == {}
    assert {command.split()[0] for command in COMMANDS} == {"add", "watch", "stats", "list"}
    (watched,) = [end.out for command, end in ended.items() if command.startswith("watch")]
    assert '{"words":6,"top":{"to":2,"be":2,"or":1}}' in watched.splitlines()[-1]


def test_the_sample_counts_every_text_once_and_tells_the_total(served: str) -> None:
    async def read_total(tx: JobTransaction) -> int:
        return int.from_bytes(await tx.kv.get(TOTAL) or b"", "little")

    async def count() -> None:
        async with JobsService(served) as jobs:
            before = await jobs.transact(read_total)
            for id, text in (("one", "a b A"), ("two", "d e"), ("three", "")):
                await jobs.add("count-words", id, {"text": text, "top": 1})
            results = [await jobs.result("count-words", id, timeout=HANG) for id in ("one", "two", "three")]
            assert results == [{"words": 3, "top": {"a": 2}}, {"words": 2, "top": {"d": 1}}, {"words": 0, "top": {}}]
            await jobs.add("word-total", "asked for")
            assert await jobs.result("word-total", "asked for", timeout=HANG) == before + 5

    asyncio.run(count())
