"""Every verb of the command line takes hostile arguments, input, environment and settings: its exit code is one of the
four, its error one line, and the store unharmed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from jobs_service import JobsService, Settings
from jobs_service.settings import PREFIX
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

LEAST_CALLS = 250
LINES_STRIDE = 9
VARIABLES_STRIDE = 29
STRIDE = 12
"""Each place meets one value in so many, others than the place beside it."""


def nested(before: str, after: str, depth: int) -> str:
    """Return JSON that is nested so deeply."""
    return before * depth + "1" + after * depth


ARGUMENTS = {
    **{name: text for name, text in TEXTS.items() if "\x00" not in text},  # no operating system passes NUL on
    **{f"{size} characters": "x" * size for size in (255, 480, 494, 498, 499, 511, 512, 4_095, 10_000, 100_000)},
    **{f"json, {depth} deep": "json:" + nested("[", "]", depth) for depth in (40, 60, 190, 330, 900, 990, 100_000)},
    **{f"json objects, {depth} deep": "json:" + nested('{"a":', "}", depth) for depth in (1, 330, 100_000)},
    **{f"packed, {depth} deep": f'json:{{"packed":"{"05" * depth}{"00" * depth}"}}' for depth in (10, 330, 2_000)},
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
    "json packed versionstamp": f'json:{{"packed":"33{"00" * 12}"}}',
    "json packed nothing": 'json:{"packed":""}',
    "json packed garbage": 'json:{"packed":"ff"}',
    "json packed unfinished": 'json:{"packed":"1d"}',
    "json packed not UTF-8": 'json:{"packed":"02ff00"}',
    "json packed NaN": 'json:["a",{"packed":"21fff8000000000000"}]',
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
]
JSON_TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "blank": b" \t\r\n ",
    "NUL": b"\x00",
    "NUL in a text": b'"a\x00b"',
    "control character in a text": b'"a\x1bb"',
    "binary": bytes(range(256)),
    "not UTF-8": b'"\xff\xfe"',
    "encoded surrogate": b'"\xed\xa0\x80"',
    "overlong": b'"\xc0\xaf"',
    "byte order mark": b"\xef\xbb\xbf[1]",
    "byte order mark alone": b"\xef\xbb\xbf",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "lone surrogate": b'"\\ud800"',
    "lone surrogate as a key": b'{"\\udfff": 1}',
    "split character": b'["\\ud83d", "\\ude00"]',
    "surrogate pair": b'"\\ud83d\\ude00"',
    "duplicate keys": b'{"a": 1, "a": {"a": 2}}',
    "5,000 digits": b"9" * 5_000,
    "-5,000 digits": b"[-" + b"9" * 5_000 + b"]",
    "4,300 digits": b"9" * 4_300,
    "beyond 64 bits": b"[18446744073709551616, -9223372036854775809]",
    "1e999": b"1e999",
    "-1e999": b"[-1e999]",
    "1e-999": b"1e-999",
    "NaN": b"[NaN]",
    "Infinity": b"-Infinity",
    "minus zero": b"[-0, -0.0]",
    "leading zero": b"007",
    "comment": b"/* a */ 1",
    "trailing comma": b"[1,]",
    "single quotes": b"{'a': 1}",
    "two values": b"1 2",
    "unfinished text": b'"abc',
    "unfinished escape": b'"\\u12"',
    "unfinished": b'{"a": [',
    "only brackets": b"[" * 100_000,
    "crlf": b"[1,\r\n2]\r\n",
    "100,001 bytes": b'"' + b"x" * 100_001 + b'"',
    "2,000,000 bytes": b'"' + b"x" * 2_000_000 + b'"',
    "many values": b"[" + b"0," * 200_000 + b"0]",
    **{f"lists {depth} deep": nested("[", "]", depth).encode() for depth in (189, 190, 191, 900, 990, 1_100, 100_000)},
    **{f"objects {depth} deep": nested('{"a":', "}", depth).encode() for depth in (190, 191, 330, 900, 100_000)},
}
LINES: dict[str, bytes] = {
    **{f"data: {name}": b'{"id": "line", "data": ' + text + b"}" for name, text in JSON_TEXTS.items()},
    **{f"run_at: {name}": b'{"id": "line", "run_at": ' + text + b"}" for name, text in JSON_TEXTS.items()},
    **{f"priority: {name}": b'{"id": "line", "priority": ' + text + b"}" for name, text in JSON_TEXTS.items()},
    **{f"id: {name}": b'{"id": ' + text + b"}" for name, text in JSON_TEXTS.items()},
    **{f"line: {name}": text for name, text in JSON_TEXTS.items()},
    "deep id": b'{"id": "json:' + b"[" * 900 + b"]" * 900 + b'"}',
    "deeper priority": b'{"id": "line", "priority": "json:' + b"[" * 330 + b"]" * 330 + b'"}',
    "unknown field": b'{"id": "line", "\\u001b[31m' + b"x" * 5_000 + b'": 1}',
    "odd time": b'{"id": "line", "run_at": "' + b"9" * 5_000 + b'"}',
    "year 1": b'{"id": "line", "run_at": "0001-01-01T00:00:00+14:00"}',
    "bool for a time": b'{"id": "line", "run_at": true}',
    "object for a priority": b'{"id": "line", "priority": {"a": []}}',
    "id that is too long": b'{"id": "' + b"x" * 600 + b'"}',
    "no line feed at the end": b'{"id": "line"}\n{"id": "line2"}',
    "an endless line": b"x" * 3_000_000,
    "many empty lines": b"\n" * 100_000,
    "carriage returns": b'{"id": "line"}\r\r\n',
}
TOML: dict[str, bytes] = {
    "binary": bytes(range(256)),
    "not UTF-8": b"a = '\xff'",
    "NUL": b"activity_batch = 1\x00",
    "byte order mark": b"\xef\xbb\xbfactivity_batch = 1",
    "deep": b"a = " + b"[" * 100_000 + b"]" * 100_000,
    "deep table": b"[" + b"a." * 5_000 + b"a]",
    "5,000 digits": b"activity_batch = " + b"9" * 5_000,
    "hexadecimal": b"activity_batch = 0x" + b"f" * 5_000,
    "inf": b"transaction_timeout = inf",
    "NaN": b"transaction_timeout = nan",
    "date": b"transaction_timeout = 2030-01-01T00:00:00Z",
    "table": b"[transaction_timeout]\na = 1",
    "array": b"activity_batch = [1, [2], {a = 3}]",
    "text": b"activity_batch = '''\n" + b"x\n" * 5_000 + b"'''",
    "twice": b"activity_batch = 1\nactivity_batch = 2",
    "unknown": b'"\\u001b[31m\\n' + b"x" * 5_000 + b'" = 1',
    "unknown private": b"_env_file = 'x'",
    "empty key": b'"" = 1',
    "true": b"activity_batch = true",
    "huge": b"# " + b"x" * 1_000_000,
}


@pytest.fixture
def populated(invoke: Invoke, email: str) -> str:
    """The address of a store with a canary, and with a job that verbs may do something to."""
    for id, data in (("canary", CANARY), ("worked on", "1")):
        assert invoke("add", "email", id, "--data", data, "--priority", "json:[1]", "--store", email).code == 0
    return email


def assert_unharmed(invoke: Invoke, address: str) -> None:
    """Fail unless store and canary are as they should be."""
    assert invoke("show", "email", "canary", "--json", "--store", address).json["data"] == {"tweet": [1, 2.5, None]}

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


@pytest.mark.parametrize("way", ["-", "@"])
def test_no_data_does_harm(invoke: Invoke, populated: str, tmp_path: Path, way: str) -> None:
    complaints = []
    for name, text in JSON_TEXTS.items():
        (tmp_path / "data").write_bytes(text)
        given = "-" if way == "-" else f"@{tmp_path / 'data'}"
        for command in (["add", "email", f"data {name}"], ["resubmit", "email", "worked on"]):
            ended = invoke(*command, "--data", given, "--store", populated, stdin=text)
            if complaint := complaint_about(ended):
                complaints.append(f"{command[0]} given {name}: {complaint}")
    assert complaints == []
    assert_unharmed(invoke, populated)
    for verb in (["list"], ["list", "--json"], ["show", "email", "worked on"], ["types"]):
        assert complaint_about(invoke(*verb, "--store", populated)) is None


def test_no_line_does_harm_and_the_lines_before_it_stay(invoke: Invoke, populated: str) -> None:
    complaints = []
    for number, (name, line) in enumerate(list(LINES.items())[::LINES_STRIDE]):
        before = f"before {number}"
        ended = invoke("add-many", "email", "--store", populated, stdin=b'{"id": "%s"}\n%s' % (before.encode(), line))
        if complaint := complaint_about(ended):
            complaints.append(f"{name}: {complaint}")
        if invoke("show", "email", before, "--store", populated).code != 0:
            complaints.append(f"{name}: the line before it was not added")
        invoke("remove", "email", "line", "--store", populated)
    assert complaints == []
    assert_unharmed(invoke, populated)


def test_no_environment_does_harm(invoke: Invoke, populated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints = []
    possible = {name: text for name, text in ARGUMENTS.items() if can_be_a_variable(text)}
    variables = [*(PREFIX + name.upper() for name in Settings.model_fields), "JOBS_SERVICE_SETTINGS", "COLUMNS"]
    for position, variable in enumerate(variables):
        for name in list(possible)[position % VARIABLES_STRIDE :: VARIABLES_STRIDE]:
            with monkeypatch.context() as changed:
                changed.setenv(variable, possible[name])
                ended = invoke("list", "--store", populated)
            if complaint := complaint_about(ended):
                complaints.append(f"{variable} is {name}: {complaint}")
    assert complaints == []
    assert_unharmed(invoke, populated)


def can_be_a_variable(text: str) -> bool:
    """Return whether the operating system takes it as a variable's value."""
    try:
        return len(os.fsencode(text)) < 100_000
    except UnicodeEncodeError:
        return False


def test_no_settings_file_does_harm(
    invoke: Invoke, populated: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    complaints = []
    monkeypatch.setenv("JOBS_SERVICE_SETTINGS", str(tmp_path / "settings.toml"))
    for name, text in TOML.items():
        (tmp_path / "settings.toml").write_bytes(text)
        if complaint := complaint_about(invoke("list", "--store", populated)):
            complaints.append(f"{name}: {complaint}")
    assert complaints == []
