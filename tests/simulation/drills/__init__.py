"""Small things that are done where nothing else happens: what must come of each is known exactly, and soon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tests.simulation.drills.blocks import do_in_blocks, fail_in_a_block
from tests.simulation.drills.commits import share_commits
from tests.simulation.drills.deciding import count_beside_others, decide_by_what_is_so
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.followers import follow_beside_others
from tests.simulation.drills.following import follow_jobs_that_leave
from tests.simulation.drills.late_ticks import tick_late
from tests.simulation.drills.leaving import fail_while_others_wait, leave_while_others_wait
from tests.simulation.drills.lines import wait_in_line
from tests.simulation.drills.lost_attempts import lose_attempts
from tests.simulation.drills.mixing import mix_operations
from tests.simulation.drills.restarts import restart_parts
from tests.simulation.drills.stopping import stop_and_remove

OF_TRANSACTIONS: Final[tuple[Callable[[Drill], Awaitable[None]], ...]] = (
    mix_operations,
    mix_operations,
    decide_by_what_is_so,
    decide_by_what_is_so,
    count_beside_others,
)
"""Those about transactions; what is here twice is done twice as often."""

DRILLS: Final[tuple[Callable[[Drill], Awaitable[None]], ...]] = (
    wait_in_line,
    wait_in_line,
    leave_while_others_wait,
    fail_while_others_wait,
    stop_and_remove,
    do_in_blocks,
    fail_in_a_block,
    follow_jobs_that_leave,
    *OF_TRANSACTIONS,
    share_commits,
    lose_attempts,
    lose_attempts,
    tick_late,
    follow_beside_others,
    restart_parts,
)
"""All of them; what is here twice is done twice as often."""

__all__ = ["DRILLS", "OF_TRANSACTIONS", "Drill"]
