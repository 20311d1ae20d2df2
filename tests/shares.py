"""How many cases the tests with very many of them try: a share, and all of them in `scripts/test --long cases`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

ALL: Final = os.environ.get("JOBS_SERVICE_TEST_CASES") == "all"


def share(cases: Sequence[T], every: int, first: int = 0) -> Sequence[T]:
    """Return every so-manieth of some cases, from one on; all of them where all are to be tried."""
    return cases if ALL else cases[first::every]
