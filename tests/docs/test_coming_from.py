"""The page for those who know other queues: our code in it is code, and means something here."""

from __future__ import annotations

import ast
import re

import pytest

from jobs_service import Discard, Retry, Snooze
from tests.docs.pages import read, rows

ROWS = [row for head in ("Celery", "DBOS") for row in rows(read("docs/coming-from.md"), head)]
CODE = [code for row in ROWS for code in re.findall(r"`([^`]+)`", row[-1])]
PYTHON = [code for code in CODE if not code.startswith("jobs-service ")]


def test_every_row_has_code() -> None:
    assert all("`" in row[-1] for row in ROWS)


@pytest.mark.parametrize("code", PYTHON)
def test_our_code_is_python(code: str) -> None:
    lines = {"@": f"{code}\nasync def handler(): ...", "async for": f"async def f():\n    {code}: ..."}
    text = next((text for begin, text in lines.items() if code.startswith(begin)), code)
    compile(text, "docs/coming-from.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_what_handlers_raise_is_made_as_the_page_says() -> None:
    raised = [code.removeprefix("raise ") for code in PYTHON if code.startswith("raise ")]
    made = [eval(code, {"Discard": Discard, "Retry": Retry, "Snooze": Snooze}) for code in raised]
    assert {type(each) for each in made} == {Discard, Retry, Snooze}
