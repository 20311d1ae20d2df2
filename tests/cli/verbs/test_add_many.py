"""`add-many`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobsService, names
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, process, started


def lines(*jobs: Any) -> bytes:
    return b"".join(json.dumps(job).encode() + b"\n" for job in jobs)


def ids(store: str) -> list[str | bytes]:
    async def read(jobs: JobsService) -> list[str | bytes]:
        return [job.id async for job in jobs.list()]

    return arrange(store, read)


def test_every_line_becomes_a_job(invoke: Invoke, email: str, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(
        lines(
            {"id": "1", "data": {"n": 1}, "priority": -1, "run_at": "2100-01-01T00:00:00Z"},
            {"id": 'json:"\\n"', "priority": "late", "run_at": 4102444800},
            {"id": 'json:{"bytes":"ff"}', "data": None, "priority": 'json:["a"]', "run_at": None},
        )
        + b'\n   \n{"id": "no line feed"}'
    )
    added = invoke("add-many", "email", "jobs", "--store", email)
    assert (added.code, added.out, added.err) == (0, "type email: 4 jobs added\n", "")
    listed = {
        names.shown(names.from_json(job["id"])): job
        for job in invoke("list", "--store", email, "-o", "json").json_lines
    }
    assert listed["1"]["data"] == {"n": 1}
    assert (listed["1"]["priority"], listed["1"]["run_at"]) == (-1, "2100-01-01T00:00:00.000000Z")
    assert (listed['json:"\\n"']["priority"], listed['json:"\\n"']["run_at"]) == ("late", "2100-01-01T00:00:00.000000Z")
    assert listed['json:{"bytes":"ff"}']["priority"] == ["a"]
    assert listed["no line feed"]["data"] is None


def test_lines_come_from_standard_input(email: str, tmp_path: Path) -> None:
    given = lines(*({"id": f"{number:05}"} for number in range(3000)))
    added = process("add-many", "email", "-o", "json", "--store", email, cwd=tmp_path, stdin=given)
    assert (added.code, added.json) == (0, {"type": "email", "added": 3000})
    assert len(ids(email)) == 3000


def test_what_is_listed_can_be_added_again(invoke: Invoke, email: str, tmp_path: Path) -> None:
    invoke(
        "add",
        "email",
        'json:"\\u0000"',
        "--data",
        '{"a": "\\ud800"}',
        "--priority",
        'json:"1"',
        "--in",
        "1d",
        "--store",
        email,
    )
    (job,) = invoke("list", "--store", email, "-o", "json").json_lines
    again = lines({field: job[field] for field in ("id", "data", "priority", "run_at")})
    invoke("types", "set", "copy", "60", "--store", email)
    assert invoke("add-many", "copy", "--store", email, stdin=again).code == 0
    (copy,) = invoke("list", "copy", "--store", email, "-o", "json").json_lines
    assert {**copy, "type": "email", "seq": job["seq"], "history": job["history"]} == job


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (b"{", "not JSON (Expecting property name enclosed in double quotes at character 2)"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 50_000, "not usable JSON (nested too deeply)"),
        (b'{"id": "x", "data": NaN}', "not usable JSON (NaN is not a JSON number)"),
        (b'["x"]', 'not a JSON object; write {"id": "...", "data": ...}'),
        (b"{}", "id is missing"),
        (b'{"id": 1}', "id must be a string"),
        (b'{"id": "json:{"}', "behind json: is not JSON"),
        (b'{"id": "x", "Data": 1}', "unknown field 'Data'; allowed are id, data, priority, run_at"),
        (b'{"id": "x", "run_at": "2030-01-01"}', "'2030-01-01' has no offset from UTC"),
        (b'{"id": "x", "run_at": true}', "run_at must be an ISO time"),
        (b'{"id": "x", "priority": 1.5}', "priority 1.5"),
        (b'{"id": "x", "data": "%s"}' % (b"x" * 150_000), "line 703"),
        (b'{"id": "json:1"}', "id 1"),
    ],
)
def test_a_bad_line_is_named_and_everything_before_it_stays(
    invoke: Invoke, email: str, bad: bytes, complaint: str
) -> None:
    good = lines(*({"id": f"{number:04}"} for number in range(702)))
    refused = invoke("add-many", "email", "--store", email, stdin=good + bad + b"\n" + lines({"id": "after"}))
    assert refused.code == 2
    assert refused.error.startswith("line 703: ")
    assert complaint in refused.error
    assert refused.error.endswith("; 702 jobs were added before, which stay")
    assert ids(email) == [f"{number:04}" for number in range(702)]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(invoke: Invoke, email: str) -> None:
    refused = invoke("add-many", "email", "--store", email, stdin=lines({"id": "1"}) + b"x" * 2_000_000)
    assert refused.code == 2
    assert "line 2 is longer than 1000000 bytes" in refused.error


def test_a_job_that_exists_ends_it_with_its_line_unless_resubmit_is_given(invoke: Invoke, email: str) -> None:
    given = lines({"id": "a"}, {"id": "b"}, {"id": "c", "data": 1})
    invoke("add", "email", "c", "--store", email)
    refused = invoke("add-many", "email", "--store", email, stdin=given)
    assert refused.code == 1
    assert refused.error == (
        "line 3: job c of type email exists already; --resubmit has it run again; 2 jobs were added before, which stay"
    )
    assert invoke("add-many", "email", "--resubmit", "--store", email, stdin=given).code == 0
    assert invoke("show", "email", "c", "-o", "json", "--store", email).json["data"] == 1


def test_lines_that_come_slowly_are_added_as_they_come(email: str, tmp_path: Path) -> None:
    adding = started("add-many", "email", "--store", email, cwd=tmp_path, stdin=subprocess.PIPE)
    assert adding.stdin is not None
    with adding:
        for id in ("first", "second"):
            adding.stdin.write(json.dumps({"id": id}) + "\n")
            adding.stdin.flush()

            async def arrives(jobs: JobsService) -> str | bytes | None:
                job = await jobs.accept("email", timeout=HANG)
                return job.id if job else None

            assert arrange(email, arrives) == id
        out, err = adding.communicate(timeout=HANG)
    assert (adding.returncode, out, err) == (0, "type email: 2 jobs added\n", "")
