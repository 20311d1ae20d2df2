"""Every verb of the command line takes hostile arguments: its exit code is one of the four, its error one line, and the
store unharmed."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from jobs_service import JobsService
from tests.checker import assert_sound
from tests.cli.conftest import Invoke
from tests.cli.conftest import _nothing_configured as _nothing_configured
from tests.cli.conftest import _own_environment as _own_environment
from tests.cli.conftest import email as email
from tests.cli.conftest import invoke as invoke
from tests.cli.conftest import store as store
from tests.cli.support import arrange
from tests.hostile.inputs import TEXTS
from tests.hostile.verbs import CANARY, complaint_about

LEAST_CALLS = 100
STRIDE = 29
"""Each place meets one value in so many, others than the place beside it."""


def nested(before: str, after: str, depth: int) -> str:
    """Return JSON that is nested so deeply."""
    return before * depth + "1" + after * depth


ARGUMENTS = {
    **{name: text for name, text in TEXTS.items() if "\x00" not in text},  # no operating system passes NUL on
    **{f"{size} characters": "x" * size for size in (255, 480, 494, 498, 499, 511, 512, 4_095, 10_000, 100_000)},
    **{f"json, {depth} deep": "json:" + nested("[", "]", depth) for depth in (40, 60, 190, 330, 900, 990, 100_000)},
    **{f"json objects, {depth} deep": "json:" + nested('{"a":', "}", depth) for depth in (1, 330, 100_000)},
    "json null": "json:null",
    "json bool": "json:true",
    "json float": "json:1.5",
    "json float in a list": "json:[1.5, null, true]",
    "json NaN": "json:[NaN]",
    "json 1e999": "json:[1e999]",
    "json 2**2040": f"json:{2**2040}",
    "json 5,000 digits": "json:" + "9" * 5_000,
    "json nothing": "json:",
    "json unfinished": "json:[",
    "json twice": "json:1 2",
    "json surrogate": 'json:"\\ud800"',
    "json surrogate in a list": 'json:["\\udfff"]',
    "json NUL": 'json:"\\u0000"',
    "json object": 'json:{"a":1}',
    "json bytes of no digits": 'json:{"bytes":"zz"}',
    "json bytes of a number": 'json:{"bytes":7}',
    "json bytes twice": 'json:{"bytes":"00","bytes":"01"}',
    "json bytes and more": 'json:{"bytes":"00","a":1}',
    "5,000 digits": "9" * 5_000,
    "-5,000 digits": "-" + "9" * 5_000,
    "400 digits": "9" * 400,
    "300 digits": "9" * 300,
    "2**64": str(2**64),
    "0": "0",
    "-1": "-1",
    "0.0": "0.0",
    "tiny": "0." + "0" * 330 + "1",
    "inf": "inf",
    "1e3": "1e3",
    "arabic digits": "١٢٣",
    "superscript": "²",
    "days without end": "9" * 400 + "d",
    "100,000 years": "36500000d",
    "mixed units": "1d2h3m4.5s",
    "wrong units": "5x",
    "no time": "2030-13-45T99:99",
    "year 0": "0000-01-01T00:00:00Z",
    "year 1": "0001-01-01T00:00:00+14:00",
    "year 9999": "9999-12-31T23:59:59.999999-14:00",
    "offset of a day": "2030-01-01T00:00:00+24:00",
    "naive": "2030-01-01T00:00:00",
    "week": "2030-W01-1T00:00:00Z",
    "an hour from nowhere": "2030-01-01T00:00:00+00:00:00.000001",
    "file": "@/nowhere/at/all",
    "directory": "@.",
    "directory itself": ".",
    "root": "/",
    "long file": "@" + "x" * 5_000,
    "deep directory": "/".join("x" * 2_500),
    "module": "os:path",
    "module of none": "no.such.module:x",
    "module that is relative": "..:x",
    "no module": ":",
    "many colons": "a:b:c",
    "attribute that is odd": "os:__dict__.\udcff",
    "memory": "memory:",
    "fdb": "fdb:",
    "lmdb of nothing": "lmdb:",
    "lmdb in a file": "lmdb:/etc/passwd",
    "lmdb in nowhere": "lmdb:/proc/nowhere/store",
    "two dashes": "--",
    "dash": "-",
    "unknown option": "--no-such-option=\x1b[31m",
    "response file": "@-",
}
HERE = "HERE"
"""Where the hostile argument stands in a command line."""
NEW = "NEW"
"""An id that no job has."""
COMMANDS: Sequence[Sequence[str]] = [
    ["types", "set", HERE, "60"],
    ["types", "set", "other", HERE],
    ["types", "clear", HERE],
    ["types", HERE],
    ["add", HERE, "x"],
    ["add", "email", HERE],
    ["add", "email", NEW, "--data", HERE],
    ["add", "email", NEW, "--priority", HERE],
    ["add", "email", NEW, "--in", HERE],
    ["add", "email", NEW, "--at", HERE],
    ["add", "email", NEW, HERE],
    ["add-many", HERE],
    ["add-many", "email", HERE],
    ["list", HERE],
    ["list", "--state", HERE],
    ["list", "email", "--limit", HERE],
    ["show", HERE, "x"],
    ["show", "email", HERE],
    ["watch", HERE, "x"],
    ["watch", "email", HERE],
    ["watch", "email", "nobody", "--timeout", HERE],
    ["watch", HERE, "--timeout", "0"],
    ["add", "email", NEW, "--timeout", HERE],
    ["add", HERE, "--timeout", "60"],
    ["pause", HERE],
    ["resume", HERE],
    ["retention", HERE, "--keep", "60"],
    ["retention", "email", "--keep-failed", HERE],
    ["workers", HERE],
    ["processes", "quiet", HERE],
    ["processes", HERE],
    ["stats", HERE],
    ["periodic", HERE],
    ["handlers", HERE],
    ["health", "--max-wait", HERE],
    ["completion", HERE],
    ["remove", HERE, "x"],
    ["remove", "email", HERE],
    ["remove", "email", "nobody", "--wait", HERE],
    ["remove", "email", "nobody", HERE],
    ["resubmit", HERE, "x"],
    ["resubmit", "email", HERE],
    ["resubmit", "email", "worked on", "--data", HERE],
    ["resubmit", "email", "worked on", "--priority", HERE],
    ["resubmit", "email", "worked on", "--in", HERE],
    ["resubmit", "email", "worked on", "--at", HERE],
    ["serve", HERE, "more"],
    ["serve", HERE + ":"],
    ["serve", "--log-level", HERE],
    ["serve", "jobs_service.sample:jobs", "--types", HERE, "more"],
    ["backup", HERE],
    ["copy", HERE, "lmdb:target of a copy"],
    ["copy", "lmdb:store", HERE],
    ["copy", "lmdb:store", "lmdb:" + HERE],
    ["--store", HERE, "list"],
    ["--store", "lmdb:" + HERE, "types"],
    ["list", "--store", HERE],
    [HERE, "email", "x"],
    ["list", "email", "--older", HERE],
    ["list", "email", "--data", HERE],
    ["list", "email", "--prefix", HERE, "--text", HERE],
    ["failures", HERE],
    ["outbox", "init", HERE],
    ["outbox", "sql", HERE],
    ["outbox", "show", "sqlite:" + HERE],
    ["outbox", "retry", "sqlite:app.db", HERE],
    ["schedules", "set", HERE, "email", "--every", "1d"],
    ["schedules", "set", "daily", HERE, "--cron", HERE],
    ["schedules", "set", "daily", "email", "--every", HERE, "--data", HERE, "--missed", HERE],
    ["schedules", "set", "daily", "email", "--cron", "@daily", "--timezone", HERE],
    ["schedules", "pause", HERE],
    ["retry", "email", HERE],
    ["retry", HERE, "x"],
    ["retry", "email", "--error", HERE, "--yes"],
    ["cancel", "email", HERE],
    ["run", "email", HERE],
    ["list", "-o", HERE],
    ["stats", "email", "--since", HERE],
]


@pytest.fixture
def populated(invoke: Invoke, email: str) -> str:
    """The address of a store with a canary, and with a job that verbs may do something to."""
    for id, data in (("canary", CANARY), ("worked on", "1")):
        assert invoke("add", "email", id, "--data", data, "--priority", "json:[1]", "--store", email).code == 0
    return email


def assert_unharmed(invoke: Invoke, address: str) -> None:
    """Fail unless store and canary are as they should be."""
    assert invoke("show", "email", "canary", "-o", "json", "--store", address).json["data"] == {"tweet": [1, 2.5, None]}

    async def check(jobs: JobsService) -> None:
        await assert_sound(jobs.store)
        await jobs.add("email", "alive")
        await jobs.remove("email", "alive")

    body: Callable[[JobsService], Awaitable[None]] = check
    arrange(address, body)


def test_no_argument_of_any_verb_does_harm(invoke: Invoke, populated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", populated)
    numbers = itertools.count()
    complaints = []
    called = 0
    for position, command in enumerate(COMMANDS):
        for name in list(ARGUMENTS)[position % STRIDE :: STRIDE]:
            given = [
                part.replace(HERE, ARGUMENTS[name]).replace(NEW, f"new {next(numbers)}")
                if part in (HERE, NEW) or HERE in part
                else part
                for part in command
            ]
            called += 1
            complaint = complaint_about(invoke(*given, stdin=b'{"id": "from standard input"}\n'))
            if complaint is not None:
                complaints.append(f"{' '.join(command)} given {name}: {complaint}")
    assert complaints == [], "\n".join([f"{len(complaints)} of {called} calls:", *complaints[:40]])
    assert called >= LEAST_CALLS
    assert_unharmed(invoke, populated)
