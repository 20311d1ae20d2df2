"""The page on redaction: its handler fails without telling, and its command lines set the paths."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from jobs_service.cli import main
from tests.docs.pages import examples
from tests.docs.running import run
from tests.runner.support import running

[HANDLER] = examples("docs/redaction.md")
[SHELL] = examples("docs/redaction.md", "sh")


async def test_the_error_reads_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", "memory:")
    names = await run(HANDLER)
    async with names["jobs"] as jobs:
        await jobs.enqueue("pay", {"card": {"number": "4111-1111"}}, id="1")
        async with running(jobs):
            await jobs.wait("pay", "1", "finished", timeout=60)
        shown = (await jobs.get_redaction("pay")).job(await jobs.get("pay", "1"))
    assert shown.error.message == "the bank refuses [redacted]"
    assert "4111" not in repr(shown.to_dict())


def test_the_command_lines_set_and_remove_the_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_logging: None
) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", f"lmdb:{tmp_path}")
    said = []
    for line in ["jobs-service types set pay 30", *SHELL.splitlines()]:
        main(shlex.split(line, comments=True)[1:])
        said.append(capsys.readouterr().out)
    assert said[1:] == [
        "type pay: nothing is secret\n",
        "type pay: card.number, card.cvv is secret\n",
        "type pay: nothing is secret\n",
    ]
