"""`redact`, and that no verb prints what is secret."""

from __future__ import annotations

import asyncio
import json

import pytest

from jobs_service import JobsService, StoreUnavailable
from tests.cli.conftest import Invoke
from tests.cli.simulated import command_line
from tests.redacted import SECRET, charge

VERBS = [
    ("show", "pay", "failed"),
    ("show", "pay", "failed", "--json"),
    ("list",),
    ("list", "pay", "--json"),
    ("list", "pay", "--state", "failed"),
    ("watch", "pay", "failed"),
    ("watch", "pay", "failed", "--json"),
    ("watch", "pay", "failed", "--exit-status"),
    ("watch", "pay", "--timeout", "0.2"),
    ("workers",),
    ("workers", "--json"),
    ("stats",),
    ("stats", "--json"),
    ("types",),
    ("top", "--once"),
    ("resubmit", "pay", "waits", "--json"),
    ("resubmit", "pay", "failed", "--json"),
    ("add", "pay", "more", "--data", f'{{"card": {{"number": "{SECRET}"}}}}', "--json"),
]


async def test_no_verb_prints_what_is_secret(store: str, invoke: Invoke) -> None:
    async with JobsService(store, supervise=False) as jobs:
        await charge(jobs)
    for verb in VERBS:
        ended = await asyncio.to_thread(invoke, *verb, "--store", store)
        assert ended.code in (0, 1), (verb, ended.err)
        for part in (SECRET, SECRET[:8], SECRET[-8:]):
            assert part not in ended.out + ended.err, verb
    shown = await asyncio.to_thread(invoke, "show", "pay", "waits", "--json", "--store", store)
    assert shown.json["data"] == {"card": {"number": "[redacted]", "of": "Ada"}}


def test_paths_are_shown_set_and_removed(invoke: Invoke, email: str) -> None:
    def redact(*arguments: str) -> str:
        ended = invoke("redact", "email", *arguments, "--store", email)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    assert redact() == "type email: nothing is secret\n"
    assert redact("card.number", "**.token") == "type email: card.number, **.token is secret\n"
    assert invoke("redact", "email", "--json", "--store", email).json == {
        "type": "email",
        "redact": ["card.number", "**.token"],
    }
    assert redact("--none") == "type email: nothing is secret\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["typo"], 1, "there is no type typo"),
        (["email", "a..b"], 2, "a key in it is empty"),
        (["email", "error:stack"], 2, "of error there are type, message, traceback"),
        (["email", "a", "--none"], 2, "give no PATH with it"),
    ],
)
def test_what_is_no_path_is_refused(
    invoke: Invoke, email: str, arguments: list[str], code: int, complaint: str
) -> None:
    refused = invoke("redact", *arguments, "--store", email)
    assert refused.code == code
    assert complaint in refused.error


@pytest.mark.parametrize(
    "verb",
    [
        ["add", "pay", "more"],
        ["resubmit", "pay", "failed"],
        ["submit", "--id", "c", "true"],
        ["replicate", "http://127.0.0.1:1/a", "http://127.0.0.1:1/b"],
    ],
)
async def test_what_was_changed_is_told_even_if_what_is_secret_cannot_be_read_then(
    verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 1215 of a simulation with verbs: `add` had added its job, and exited with 3."""

    async def fails(type: object) -> None:
        raise StoreUnavailable("the store could not be reached")

    async with JobsService("memory:", supervise=False) as jobs:
        await charge(jobs)
        monkeypatch.setattr(jobs, "get_redaction", fails)
        said = await command_line(jobs, [verb[0], "--json", *verb[1:]])
        assert (said.code, said.err) == (0, "")
        told = json.loads(said.out)
        assert SECRET not in said.out
        assert told["data"] in (None, "[redacted]")
        assert (await jobs.get(told["type"], told["id"])).state == told["state"] == "pending"
        refused = await command_line(jobs, ["show", "--json", told["type"], told["id"]])
        assert (refused.code, refused.out) == (3, "")
