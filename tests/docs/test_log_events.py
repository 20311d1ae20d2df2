"""The page of log events: every event that the code logs, at its level."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import jobs_service
from tests.docs.pages import examples, read

[CONFIGURATION] = examples("docs/log-events.md")
DOCUMENTED = {
    name: level
    for names, level in re.findall(r"^\| (`[a-z_`, ]+) \| ([a-z]+) \|", read("docs/log-events.md"), re.MULTILINE)
    for name in names.split("`")[1::2]
}
LEVELS = {"exception": "error"}


def test_every_log_event_is_in_a_table_with_its_level() -> None:
    used: defaultdict[str, set[str]] = defaultdict(set)
    for source in Path(jobs_service.__file__).parent.rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        for level, name in re.findall(r"log\.(debug|info|warning|error|exception)\(\s*\"([a-z_]+)\"", text):
            used[name].add(LEVELS.get(level, level))
        for name in re.findall(r"\"(child_[a-z_]+)\"", text):
            used.setdefault(name, set())
    assert set(used) == set(DOCUMENTED)
    for name, levels in used.items():
        assert levels <= {DOCUMENTED[name]}, name


def test_the_configuration_shows_details_on_standard_error() -> None:
    logged = "from jobs_service.log import EventLog\nEventLog('jobs_service.actors').debug('said', id=1)"
    program = f"{CONFIGURATION}\n{logged}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert done.stderr.endswith("DEBUG jobs_service.actors: said id=1\n")
