"""What hostile arguments are made of, and the verbs that get them."""

from __future__ import annotations

from tests.cli.conftest import _nothing_configured as _nothing_configured
from tests.cli.conftest import _own_environment as _own_environment
from tests.cli.conftest import email as email
from tests.cli.conftest import invoke as invoke
from tests.cli.conftest import store as store
from tests.cli.support import Ended

CANARY = '{"tweet": [1, 2.5, null]}'


def complaint_about(ended: Ended) -> str | None:
    """Return what is wrong with how a command line ended."""
    if ended.code not in (0, 1, 2, 3):
        return f"exit code {ended.code}: {ended.err[:300]!r}"
    if "Traceback" in ended.err or "internal error" in ended.err:
        return f"a traceback: {ended.err[:300]!r}"
    if ended.code == 0:
        return f"done, but: {ended.err[:300]!r}" if ended.err else None
    lines = ended.err.splitlines()
    if len(lines) != 1 or not lines[0].startswith("jobs-service: ") or not lines[0].isprintable():
        return f"not one line: {ended.err[:300]!r}"
    return None
