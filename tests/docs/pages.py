"""The pages that people read, as tests take them apart: sections, tables, examples."""

from __future__ import annotations

import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PAPERS = [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"]


@functools.cache
def read(page: str) -> str:
    """Return a page, given its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Return what stands below a heading, up to the next one that is not below it."""
    text = read(page)
    found = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    assert found is not None, f"{page} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", _without_blocks(rest), re.MULTILINE)
    return rest if end is None else rest[: end.start()]


def examples(page: str, language: str = "python") -> list[str]:
    """Return the examples of a page in a language, in their order.

    Whoever takes them gives each a name. So an example that is added or removed is noticed, and none is left out:
    `test_examples.py` holds that the examples of every page are taken.
    """
    return blocks(read(page), language)


def blocks(text: str, language: str) -> list[str]:
    """Return what stands between the fences of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def rows(text: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with these words."""
    _, found, rest = text.partition(f"| {head} |")
    assert found, f"there is no table {head!r}"
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]] for line in lines]


def headings(page: str) -> list[str]:
    """Return all headings of a page, without their marks."""
    return re.findall(r"^#+ (.*)$", _without_blocks(read(page)), re.MULTILINE)


def links(page: str) -> list[str]:
    """Return where the links of a page lead."""
    text = re.sub(r"`[^`\n]*`", "", _without_blocks(read(page)))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchor(heading: str) -> str:
    """Return what a link to a heading ends with, as GitHub makes it."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def _without_blocks(text: str) -> str:
    """Return a text with its examples blanked out, each character in its place."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return re.sub(r"^```.*?^```$", blank, text, flags=re.DOTALL | re.MULTILINE)
