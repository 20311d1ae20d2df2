"""Every link leads somewhere, every page is found, and every file that a page names is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, PAPERS, ROOT, anchor, headings, links, read

NAMED = re.compile(r"`((?:jobs_service|tests|scripts|docs|\.ci)/[\w./-]*)`")


@pytest.mark.parametrize("page", PAPERS)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, name = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if name:
            assert name in map(anchor, headings(str(target.resolve().relative_to(ROOT)))), link


@pytest.mark.parametrize("page", PAGES)
def test_every_page_of_the_site_links_within_the_site_only(page: str) -> None:
    if page != "README.md":
        assert not [link for link in links(page) if link.startswith("..")]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    for name in NAMED.findall(read(page)):
        assert (ROOT / name).exists(), name


def test_every_page_is_in_the_sites_navigation_on_its_first_page_and_in_the_readme() -> None:
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["docs_dir"] == "docs"
    named = re.findall(r'"([\w-]+\.md)"', text)
    there = [Path(page).name for page in PAGES if page != "README.md"]
    assert sorted(named) == sorted(there)
    assert set(links("docs/index.md")) >= {*there} - {"index.md"}
    assert set(links("README.md")) >= {f"docs/{name}" for name in there} - {"docs/index.md"}
