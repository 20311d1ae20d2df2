"""The commands that the demonstration recommends, written so that they work in the user's shell and directory."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from jobs_service.cli.exits import PROGRAM


def next_steps() -> list[str]:
    """Return three commands that make a store in the working directory, put a job into it and show it."""
    program = _program()
    return [
        f"{program} types set email 60",
        f"""{program} add email first --data '{{"to": "you@example.org"}}'""",
        f"{program} list email",
    ]


def _program() -> str:
    """Return the words that run this program from the working directory."""
    script = Path(sys.executable).with_name(PROGRAM)
    found = shutil.which(PROGRAM)
    if found is not None and script.exists() and Path(found).samefile(script):
        return PROGRAM
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m jobs_service"
    here = Path.cwd()
    if not script.is_relative_to(here):
        return shlex.quote(str(script))
    # A shell looks up a word without a slash in PATH, not in the working directory.
    below = script.relative_to(here)
    return shlex.quote(f"./{below}" if len(below.parts) == 1 else str(below))
