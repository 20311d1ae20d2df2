"""The colours of the pages: whatever is put on whatever has enough contrast, light and dark, by its tokens."""

import re
from pathlib import Path

import pytest

from jobs_service.dashboard import rendering

STYLE = (rendering.HERE / "static" / "style.css").read_text()
TOKENS = {
    name: colours
    for name, *colours in re.findall(r"--([\w-]+):\s*light-dark\((#[0-9a-f]{6}),\s*(#[0-9a-f]{6})\)", STYLE)
}
STATES = ("ready", "scheduled", "running", "retrying", "succeeded", "failed", "canceled")
GROUNDS = ("page", "panel", "sunken", "hover")
TEXT = {
    **dict.fromkeys(("ink", "soft", "faint", "accent"), (*GROUNDS, "accent-tint")),
    "on-fill": ("accent-fill", "accent-fill-hover"),
    "code-key": ("sunken", "panel"),
    "code-text": ("sunken", "panel"),
    **{state: (*GROUNDS, f"{state}-tint") for state in STATES},
}
MARKS = {"edge": ("page", "panel", "sunken"), **{f"{state}-fill": GROUNDS for state in STATES}}


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour by WCAG, 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dim, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_have_contrast_on_every_ground(theme: int) -> None:
    pairs = [(text, ground, 4.5) for text, grounds in TEXT.items() for ground in grounds]
    pairs += [("ink", f"{state}-tint", 4.5) for state in STATES] + [("soft", f"{state}-tint", 4.5) for state in STATES]
    pairs += [(mark, ground, 3.0) for mark, grounds in MARKS.items() for ground in grounds]
    found = [(a, b, contrast(TOKENS[a][theme], TOKENS[b][theme]), least) for a, b, least in pairs]
    assert [each for each in found if each[2] < each[3]] == []


def test_every_colour_is_a_token_and_every_token_is_used() -> None:
    rest = STYLE.partition("/* 2 Elements */")[2]
    assert re.findall(r"#[0-9a-f]{3,8}\b", rest) == []
    templates = "".join(path.read_text() for path in Path(rendering.HERE / "templates").iterdir())
    named = set(re.findall(r"--([\w-]+):", STYLE.partition("/* 2 Elements */")[0]))
    assert {name for name in named if f"var(--{name})" not in STYLE + templates} == set()
