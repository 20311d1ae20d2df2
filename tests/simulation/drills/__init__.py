"""Small things that are done where nothing else happens: what must come of each is known exactly, and soon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tests.simulation.drills.acting import act_alone
from tests.simulation.drills.adding import add_in_parts, enqueue_in_parts
from tests.simulation.drills.asking import ask_together, leave_a_transaction
from tests.simulation.drills.blocks import do_in_blocks, fail_in_a_block
from tests.simulation.drills.breaking_lanes import break_lanes
from tests.simulation.drills.clock_changes import tell_the_ticks
from tests.simulation.drills.commits import share_commits
from tests.simulation.drills.deciding import count_beside_others, decide_by_what_is_so
from tests.simulation.drills.declaring import declare_options, give_arguments
from tests.simulation.drills.draining import leave_handlers
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.ends import end_in_every_way
from tests.simulation.drills.figures import tell_figures
from tests.simulation.drills.followers import follow_beside_others
from tests.simulation.drills.following import follow_jobs_that_leave
from tests.simulation.drills.giving_up import give_up_handlers
from tests.simulation.drills.heartbeats import list_processes
from tests.simulation.drills.keeping import keep_for_a_while
from tests.simulation.drills.late_ticks import tick_late
from tests.simulation.drills.leaving import fail_while_others_wait, leave_while_others_wait
from tests.simulation.drills.lines import wait_in_line
from tests.simulation.drills.listed import know_the_processes
from tests.simulation.drills.listing import list_a_process
from tests.simulation.drills.living import live_and_live_again
from tests.simulation.drills.looking import look_at_a_type
from tests.simulation.drills.losing import lose_some
from tests.simulation.drills.lost_attempts import lose_attempts
from tests.simulation.drills.midway import leave_in_the_middle
from tests.simulation.drills.mixing import mix_operations
from tests.simulation.drills.options import say_options
from tests.simulation.drills.pages import come_due_in_pages, expire_in_pages
from tests.simulation.drills.paging import page_through
from tests.simulation.drills.processes import ask_a_process
from tests.simulation.drills.reading import count_what_is_there, take_what_is_there
from tests.simulation.drills.restarts import restart_parts
from tests.simulation.drills.retrying import crash_again_and_again
from tests.simulation.drills.running import run_some_handlers
from tests.simulation.drills.settings import say_what_a_type_is
from tests.simulation.drills.shares import share_accepts
from tests.simulation.drills.sharing_places import share_places
from tests.simulation.drills.showing_life import show_life
from tests.simulation.drills.silence import lose_in_pages
from tests.simulation.drills.sleepers import sleep_and_wake
from tests.simulation.drills.slots import share_slots
from tests.simulation.drills.spreading import learn_to_spread
from tests.simulation.drills.stopping import stop_and_remove
from tests.simulation.drills.subscribing import follow_several_jobs
from tests.simulation.drills.supervising import supervise_parts
from tests.simulation.drills.taking_back import take_back_in_pages
from tests.simulation.drills.terms import wait_on_all_terms
from tests.simulation.drills.ticking import come_by_themselves
from tests.simulation.drills.turns import take_turns
from tests.simulation.drills.types import change_a_timeout, wake_a_type
from tests.simulation.drills.waiting import wait_for_states

OF_TRANSACTIONS: Final[tuple[Callable[[Drill], Awaitable[None]], ...]] = (
    mix_operations,
    mix_operations,
    decide_by_what_is_so,
    decide_by_what_is_so,
    count_beside_others,
    ask_together,
    leave_a_transaction,
    add_in_parts,
    enqueue_in_parts,
    page_through,
)
"""Those about transactions; what is here twice is done twice as often."""

DRILLS: Final[tuple[Callable[[Drill], Awaitable[None]], ...]] = (
    wait_in_line,
    wait_in_line,
    wait_on_all_terms,
    wait_on_all_terms,
    learn_to_spread,
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
    *OF_TRANSACTIONS,
    follow_several_jobs,
    wait_for_states,
    look_at_a_type,
    list_a_process,
    supervise_parts,
    lose_some,
    list_processes,
    say_what_a_type_is,
    keep_for_a_while,
    live_and_live_again,
    know_the_processes,
    tell_figures,
    share_commits,
    leave_handlers,
    crash_again_and_again,
    lose_attempts,
    lose_attempts,
    tick_late,
    give_up_handlers,
    show_life,
    share_places,
    share_places,
    break_lanes,
    take_back_in_pages,
    expire_in_pages,
    come_due_in_pages,
    act_alone,
    follow_beside_others,
    leave_in_the_middle,
    restart_parts,
    share_accepts,
    lose_in_pages,
    sleep_and_wake,
)
"""All of them; what is here twice is done twice as often."""

__all__ = ["DRILLS", "OF_TRANSACTIONS", "Drill"]
