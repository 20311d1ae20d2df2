"""Deliberate defects, to show that the simulation finds such: a table per floor, and what plants them.

A mutant is a table of a TOML file here, which is called what it says:

    ["a paused type is accepted from"]
    doc = "Workers take jobs of a type that somebody has paused."
    of = "jobs_service.layer.queue:accept"
    words = [["if await unit.is_paused(keys):", "if False:"]]

`of` is a function by the full name of its module and its name there. Each of `words` must be in its source exactly
once; the others take their place. What others need that the module does not know is in `helpers.py`, and named as
`helpers`. Changes of several functions that only together are a defect follow as `[["NAME".also]]`. `profile`,
`workloads` and `rates` are of the runs in which a mutant is to show, if it is no matter of the usual mix.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.simulation.mutants.mutant import Change, Mutant

_TABLES: Final = Path(__file__).parent


def _read(prefix: str) -> tuple[Mutant, ...]:
    files = [file for file in sorted(_TABLES.glob("*.toml")) if _kind(file) == prefix]
    return tuple(
        _mutant(name, table) for file in files for name, table in tomllib.loads(file.read_text("utf-8")).items()
    )


def _kind(file: Path) -> str:
    kind = file.stem.partition("_")[0]
    return kind if kind in {"slips", "unseen"} else ""


def _mutant(name: str, table: Mapping[str, Any]) -> Mutant:
    workloads = table.get("workloads")
    return Mutant(
        name,
        table["doc"],
        tuple(map(_change, (table, *table.get("also", ())))),
        table.get("profile"),
        None if workloads is None else tuple(workloads),
        table.get("rates", {}),
    )


def _change(table: Mapping[str, Any]) -> Change:
    words = tuple((here, other) for here, other in table["words"])
    return Change(table["of"], words, tuple(table.get("helpers", ())))


ALL: Final = _read("")
"""Those by whoever wrote the checks."""

SLIPS: Final = _read("slips")
"""Slips that were made by somebody who has not read the checks: their score tells what the simulation sees."""

EVERY: Final = (*ALL, *SLIPS)
"""All that are scored together: not those of UNSEEN."""

UNSEEN: Final = _read("unseen")
"""Slips by somebody who has read neither checks nor other slips. Not among EVERY, so that nobody tunes to them."""


def misfits() -> list[str]:
    """Return a line for each mutant that cannot be planted: its function has become another, or is gone."""
    found = []
    for mutant in (*EVERY, *UNSEEN):
        try:
            mutant.defect()
        except LookupError as error:
            found.append(f"{mutant.name!r}: {error}")
    return found


__all__ = ["ALL", "EVERY", "SLIPS", "UNSEEN", "Mutant", "misfits"]
