"""`redact`, and that no verb prints what is secret."""

from __future__ import annotations

import asyncio

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.redacted import SECRET, charge

VERBS = [
    ("show", "pay", "failed"),
    ("show", "pay", "failed", "-o", "json"),
    ("list",),
    ("list", "pay", "-o", "json"),
    ("list", "pay", "--state", "failed"),
    ("watch", "pay", "failed"),
    ("watch", "pay", "failed", "-o", "json"),
    ("watch", "pay", "failed", "--exit-status"),
    ("watch", "pay", "--timeout", "0.2"),
    ("workers",),
    ("workers", "-o", "json"),
    ("stats",),
    ("stats", "-o", "json"),
    ("types",),
    ("top", "--once"),
    ("resubmit", "pay", "waits", "-o", "json"),
    ("resubmit", "pay", "failed", "-o", "json"),
    ("add", "pay", "more", "--data", f'{{"card": {{"number": "{SECRET}"}}}}', "-o", "json"),
]


async def test_no_verb_prints_what_is_secret(store: str, invoke: Invoke) -> None:
    async with JobsService(store, supervise=False) as jobs:
        await charge(jobs)
    for verb in VERBS:
        ended = await asyncio.to_thread(invoke, *verb, "--store", store)
        assert ended.code in (0, 1), (verb, ended.err)
        for part in (SECRET, SECRET[:8], SECRET[-8:]):
            assert part not in ended.out + ended.err, verb
    shown = await asyncio.to_thread(invoke, "show", "pay", "waits", "-o", "json", "--store", store)
    assert shown.json["data"] == {"card": {"number": "[redacted]", "of": "Ada"}}


def test_paths_are_shown_set_and_removed(invoke: Invoke, email: str) -> None:
    def redact(*arguments: str) -> str:
        ended = invoke("redact", "email", *arguments, "--store", email)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    assert redact() == "type email: nothing is secret\n"
    assert redact("card.number", "**.token") == "type email: card.number, **.token is secret\n"
    assert invoke("redact", "email", "-o", "json", "--store", email).json == {
        "type": "email",
        "redact": ["card.number", "**.token"],
    }
    assert redact("--none") == "type email: nothing is secret\n"
