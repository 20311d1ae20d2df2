"""The rate limiter, the cases of CouchDB's own tests among them, on a clock that the test sets."""

from hypothesis import given
from hypothesis import strategies as st

from jobs_service.replication.http import BASE, LONGEST, RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _limiter() -> tuple[RateLimiter, Clock]:
    clock = Clock()
    return RateLimiter(clock), clock


def test_2_failures_pause_longer_and_keys_are_apart() -> None:
    limiter, clock = _limiter()
    first = limiter.refused("a")
    clock.now += 0.1
    assert limiter.refused("a") > first
    assert limiter.pause("b") == 0


def test_1_failure_2_successes_end_the_pause() -> None:
    limiter, clock = _limiter()
    limiter.refused("a")
    clock.now += 0.1
    limiter.succeeded("a")
    clock.now += 0.1
    assert limiter.succeeded("a") == 0
    assert limiter.pause("a") == 0


async def test_the_longest_pause_means_to_give_up_until_it_has_passed() -> None:
    limiter, clock = _limiter()
    assert await limiter.wait("a")
    while limiter.refused("a") < LONGEST:
        clock.now += 0.1
    assert not await limiter.wait("a")
    clock.now += LONGEST
    assert await limiter.wait("a")


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 30)), max_size=200))
def test_pauses_stay_within_their_bounds(events: list[tuple[bool, float]]) -> None:
    limiter, clock = _limiter()
    for refused, seconds in events:
        clock.now += seconds
        pause = limiter.refused("a") if refused else limiter.succeeded("a")
        assert pause == 0 or BASE <= pause <= LONGEST
        assert pause == limiter.pause("a")
