"""Small things that are done where nothing else happens: what must come of each is known exactly, and soon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tests.simulation.drills.blocks import do_in_blocks, fail_in_a_block
from tests.simulation.drills.clock_changes import tell_the_ticks
from tests.simulation.drills.declaring import declare_options, give_arguments
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.ends import end_in_every_way
from tests.simulation.drills.following import follow_jobs_that_leave
from tests.simulation.drills.leaving import fail_while_others_wait, leave_while_others_wait
from tests.simulation.drills.lines import wait_in_line
from tests.simulation.drills.options import say_options
from tests.simulation.drills.processes import ask_a_process
from tests.simulation.drills.reading import count_what_is_there, take_what_is_there
from tests.simulation.drills.running import run_some_handlers
from tests.simulation.drills.slots import share_slots
from tests.simulation.drills.stopping import stop_and_remove
from tests.simulation.drills.ticking import come_by_themselves
from tests.simulation.drills.turns import take_turns
from tests.simulation.drills.types import change_a_timeout, wake_a_type

DRILLS: Final[tuple[Callable[[Drill], Awaitable[None]], ...]] = (
    wait_in_line,
    wait_in_line,
    take_what_is_there,
    count_what_is_there,
    leave_while_others_wait,
    fail_while_others_wait,
    stop_and_remove,
    change_a_timeout,
    wake_a_type,
    do_in_blocks,
    fail_in_a_block,
    say_options,
    run_some_handlers,
    end_in_every_way,
    end_in_every_way,
    share_slots,
    take_turns,
    come_by_themselves,
    tell_the_ticks,
    declare_options,
    give_arguments,
    ask_a_process,
    follow_jobs_that_leave,
)
"""All of them; what is here twice is done twice as often."""

__all__ = ["DRILLS", "Drill"]
