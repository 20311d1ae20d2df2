"""What the pages name is there: verbs with their options, methods of services, transactions and jobs."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from typing import Any

import pytest
import typer

import jobs_service
from jobs_service import BlockingJob, JobsService, JobTransaction, RunningJob
from jobs_service.cli.app import application
from jobs_service.service.transactions import WithinTransaction
from tests.docs.pages import PAGES, read

TEXT = "\n\n".join(map(read, PAGES))
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)

OWNERS = {
    "jobs": (JobsService, jobs_service.sync.JobsService),
    "tx": (JobTransaction, WithinTransaction),
    "job": (RunningJob, BlockingJob),
    "jobs_service": (jobs_service,),
}
VERBS = read("docs/command-line.md").partition("| verb | does |")[2].partition("\n\n")[0]


def code_of(text: str) -> str:
    """Return what of a paper is code: blocks, and what stands between backticks."""
    other_languages = re.sub(r"```js\n.*?```", "", text, flags=re.DOTALL)
    return "\n".join(block or inline for block, inline in CODE.findall(other_languages))


def commands() -> list[str]:
    """Return the command lines of this program that the papers have."""
    texts = [code_of(TEXT), read("docker-compose.yml")]
    found = [line for text in texts for line in re.findall(r"jobs-service (?!VERB)([a-z][^\n`#&]*)", text)]
    return sorted({line.strip(' )"') for line in found})


@pytest.mark.parametrize("line", commands())
def test_every_verb_and_option_of_a_command_line_is_there(line: str) -> None:
    words = [word.strip("[],)") for word in re.split(r"[\s|]+", line)]
    command: Any = typer.main.get_command(application())
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    with_sub_verbs = ("types", "processes", "schedules", "outbox")
    assert not getattr(command, "commands", ()) or command.name in with_sub_verbs, f"no such verb: {line}"
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    own = words[: words.index("--")] if "--" in words else words
    assert {word for word in own if word.startswith("--")} <= options


@pytest.mark.parametrize("row", re.findall(r"^\| (`[a-z-]+.*?`) \|", VERBS, re.MULTILINE))
def test_every_verb_of_the_table_takes_what_the_table_says(row: str) -> None:
    verbs: Any = typer.main.get_command(application())
    for line in re.findall(r"`([^`]+)`", row):
        words = re.findall(r"--?[a-z-]+|[a-z][a-z-]*|[A-Z]+", line)
        command = verbs.commands[words[0]]
        command = getattr(command, "commands", {}).get(words[1] if len(words) > 1 else "", command)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--") and word != "--"} <= options, line


def test_every_verb_has_a_row_in_the_table() -> None:
    verbs: Any = typer.main.get_command(application())
    assert set(verbs.commands) <= set(re.findall(r"`([a-z-]+)", VERBS))


@pytest.mark.parametrize("owner", OWNERS)
def test_every_method_that_code_names_is_there(owner: str) -> None:
    code = code_of(TEXT)
    code = re.sub(r"\bjobs_service\.job\.\w+", "", code)  # attributes of spans
    named = set(re.findall(rf"(?<![\w.`:/-]){owner}\.([a-z_]+)", code))
    assert named
    # Not `dir`: it leaves out a module that nothing has imported yet.
    assert [name for name in sorted(named) if not any(hasattr(each, name) for each in OWNERS[owner])] == []


def test_every_name_that_is_imported_is_public() -> None:
    imports = re.findall(r"from jobs_service import (.*)", code_of(TEXT))
    named = {name for line in imports for name in re.findall(r"\w+", line)} - {*jobs_service.__all__}
    assert [name for name in named if find_spec(f"jobs_service.{name}") is None] == []


def test_the_commands_are_as_a_shell_takes_them() -> None:
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            shlex.split(line, comments=True)
