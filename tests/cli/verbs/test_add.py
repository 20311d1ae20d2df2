"""`add`."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import arrange


def test_an_added_job_is_ready_with_what_was_given(invoke: Invoke, email: str) -> None:
    added = invoke("add", "email", "first", "--data", '{"to": ["ä", 1.5]}', "--priority", "-3", "--store", email)
    assert (added.code, added.out) == (0, "job first of type email: ready\n")

    async def look(jobs: JobsService) -> None:
        job = await jobs.get("email", "first")
        assert (job.data, job.priority, job.run_at) == ({"to": ["ä", 1.5]}, -3, None)

    arrange(email, look)


def test_json_output_is_the_whole_job(invoke: Invoke, email: str) -> None:
    job = invoke(
        "add", "email", "first", "--data", "[1]", "--at", "2100-01-01T00:00:00+01:00", "-o", "json", "--store", email
    ).json
    seq = job.pop("seq")
    (added,) = job.pop("history")
    assert len(bytes.fromhex(seq)) == 12 if seq else True
    assert (job["id"], job["state"], job["data"], job["run_at"]) == (
        "first",
        "pending",
        [1],
        "2099-12-31T23:00:00.000000Z",
    )
    assert (added["kind"], added["detail"]) == ("added", "")


def test_data_comes_from_a_file_or_from_standard_input(invoke: Invoke, email: str, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('"from the file"\n')
    from_file = invoke("add", "email", "1", "--data", "@data.json", "-o", "json", "--store", email)
    from_input = invoke("add", "email", "2", "--data", "-", "-o", "json", "--store", email, stdin=b'"from the pipe"\n')
    assert [from_file.json["data"], from_input.json["data"]] == ["from the file", "from the pipe"]


def test_a_job_that_exists_is_an_answer_of_no(invoke: Invoke, email: str) -> None:
    invoke("add", "email", "first", "--store", email)
    again = invoke("add", "email", "first", "--store", email)
    assert again.code == 1
    assert again.error == "job first of type email exists already; --resubmit has it run again"


def test_resubmit_replaces_a_waiting_job_and_has_a_running_one_run_again(invoke: Invoke, email: str) -> None:
    invoke("add", "email", "first", "--store", email)
    replaced = invoke("add", "email", "first", "--data", "1", "--resubmit", "-o", "json", "--store", email)
    assert (replaced.code, replaced.json["data"]) == (0, 1)

    async def run(jobs: JobsService) -> None:
        assert await jobs.accept("email", timeout=0)

    arrange(email, run)
    flagged = invoke("add", "email", "first", "--data", "2", "--resubmit", "--store", email)
    assert flagged.out == "job first of type email: running; it runs again when it has finished\n"


def test_a_job_without_an_id_gets_one_which_is_printed(invoke: Invoke, email: str) -> None:
    first, second = (invoke("add", "email", "--data", "1", "--store", email) for _ in range(2))
    assert first.out != second.out
    assert invoke("show", "email", first.out.rstrip("\n"), "-o", "json", "--store", email).json["data"] == 1
    assert len(invoke("add", "email", "-o", "json", "--store", email).json["id"]) == 32


@pytest.mark.parametrize("verb", ["add", "add-many"])
def test_a_timeout_makes_a_type_that_is_missing_and_changes_none(invoke: Invoke, store: str, verb: str) -> None:
    def timeout_after(given: str) -> float:
        ended = invoke(verb, "email", "--timeout", given, "--store", store, stdin=b'{"id": "%s"}' % given.encode())
        assert ended.code == 0
        [type] = invoke("types", "-o", "json", "--store", store).json_lines
        return float(type["timeout"])

    assert timeout_after("1m") == 60
    assert timeout_after("2m") == 60
    invoke("types", "clear", "email", "--store", store)
    assert timeout_after("3m") == 180
    assert len(invoke("list", "-o", "json", "--store", store).json_lines) == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--data", "{"], "Invalid value for --data: not JSON"),
        (["--data", "@missing"], "Invalid value for --data: missing: No such file or directory"),
        (["--data", "NaN"], "Invalid value for --data: not usable JSON (NaN is not a JSON number)"),
        (["--data", "1e999"], "data is not JSON: the number inf"),
        (["--at", "2030-01-01"], "Invalid value for --at: '2030-01-01' has no offset from UTC"),
        (["--in", "1w"], "Invalid value for --in: '1w' is no duration"),
        (["--in", "1s", "--at", "2030-01-01T00:00:00Z"], "Invalid value for --in and --at: give one of them"),
        (["--in", "99999999d"], "run_at"),
        (["--priority", 'json:{"a":1}'], "Invalid value for --priority: the only object allowed"),
        (["--priority", "json:null"], "priority None"),
        (["--priority", "abc"], """Invalid value for --priority: 'abc' is no integer; a string is written in JSON's"""),
        (["--priority", "1O"], "Invalid value for --priority: '1O' is no integer"),
        (["--priority", "1.5"], "Invalid value for --priority: '1.5' is no integer"),
        (["--priority", ""], "Invalid value for --priority: '' is no integer"),
        (["--priority", '"a'], "is not JSON"),
        (["--colour"], "No such option"),
        (["--timeout", "0"], "Invalid value for --timeout: it must be more than 0"),
        (["--timeout", "soon"], "Invalid value for --timeout: 'soon' is no duration"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    invoke: Invoke, email: str, options: list[str], complaint: str
) -> None:
    refused = invoke("add", "email", "first", "--store", email, *options)
    assert refused.code == 2
    assert complaint in refused.error
    assert invoke("list", "--store", email).out == "no jobs\n"
