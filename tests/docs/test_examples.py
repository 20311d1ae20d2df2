"""No example stands in a page that no test runs."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES, ROOT, examples

TESTS = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py")))


@pytest.mark.parametrize("language", ["python", "sh"])
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_every_page_are_taken_by_a_test(page: str, language: str) -> None:
    if not examples(page, language):
        return
    what = f'examples("{page}")' if language == "python" else f'examples("{page}", "{language}")'
    # Each by its name, or all of them one after the other.
    assert re.search(rf"^(?:\[.*\]|\w+(?:, \w+)+,?|\w+) = {re.escape(what)}$", TESTS, re.MULTILINE), what
