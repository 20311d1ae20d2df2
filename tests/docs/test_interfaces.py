"""The page of interfaces: it has every page and button, every verb, every address, and no others."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer
from starlette.routing import Route

from jobs_service import JobsService
from jobs_service.cli.app import application
from jobs_service.cli.selecting import OPTIONS
from jobs_service.http.application import Application
from jobs_service.http.endpoint import ENDPOINTS
from jobs_service.http.tokens import Role
from tests.docs.pages import read, rows, section

PAGE = "docs/interfaces.md"
TABLE = [row for name in ("Looking", "Doing") for row in rows(section(PAGE, name), "to")]
REST = read(PAGE).rpartition("\n\n")[2]
STANDS_FOR = {
    "TYPE": "email",
    "NAME": "daily",
    "ID": "x",
    "JSON": "7",
    "TEXT": "x",
    "SECONDS": "5",
    "S": "5",
    "FILE": "-",
    "PATH": "a",
}


def code(column: int) -> list[str]:
    """Return what is code in a column."""
    return [found for row in TABLE for found in re.findall(r"`([^`]+)`", row[column])]


def pages() -> set[str]:
    """Return the paths of all pages and buttons that show or do something."""
    routes = Application(JobsService("memory:"))._pages.routes
    about_itself = {"/login", "/logout", "/preferences"}
    return {each.path for each in routes if isinstance(each, Route) and "/static/" not in each.path} - about_itself


def whole(address: str) -> str:
    """Return an address without the short beginning of the table."""
    return address.replace("...", "/v1/types/{type}")


def test_every_page_and_button_is_in_the_table_and_no_other() -> None:
    assert {word for word in code(1) if word.startswith("/")} == pages()


def test_every_address_is_in_the_table_and_no_other() -> None:
    workers = {
        word for row in rows(section("docs/http.md", "Workers"), "request") for word in re.findall(r"[a-z_]+`", row[0])
    }
    known = {
        f"{each.method} {each.path}"
        for each in ENDPOINTS
        if each.role not in (Role.WORK, Role.NOBODY)
        and f"{each.path.rpartition('/')[2]}`" not in workers - {"watch`", "due`"}
    }
    named = {whole(word) for word in code(3) if " " in word}
    assert known <= named | {"POST /v1/types/{type}/jobs/{id}/resubmit"}
    known |= {f"GET {path}" for path in (*pages(), "/readyz", "/livez")}
    assert named - known - {"POST /v1/types/{type}/jobs/{id}/resubmit"} == set()


@pytest.mark.parametrize("line", [word for word in code(2) if not word.startswith("--")])
def test_every_command_line_of_the_table_is_one(line: str) -> None:
    words = shlex.split(line.replace("MODULE:ATTR", "app:jobs"))
    filter = ["--state", "failed"] if "FILTER" in words else []
    words = [STANDS_FOR.get(word, word) for word in words if word != "FILTER"] + filter
    command: Any = typer.main.get_command(application())
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    command.make_context("jobs-service", words, resilient_parsing=False)


def test_every_verb_is_in_the_table_or_below_it() -> None:
    verbs: Any = typer.main.get_command(application())
    named = {word.split()[0] for word in code(2) if not word.startswith("--")}
    below = set(re.findall(r"`([a-z-]+)`", REST))
    assert set(verbs.commands) == named | below
    assert not named & below


def test_every_verb_for_many_jobs_has_every_option_of_a_filter() -> None:
    verbs: Any = typer.main.get_command(application())
    for verb in ("list", "retry", "cancel", "remove"):
        assert {*OPTIONS} <= {parameter.name for parameter in verbs.commands[verb].params}
