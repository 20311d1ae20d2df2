"""Cookie sessions: when they are renewed, and by whom. The cases of CouchDB's own tests are among them."""

import asyncio

import pytest

from jobs_service.replication.http import CookieSession, SessionAnswer


class Sessions:
    """A server's `_session`, on a clock that the test sets."""

    def __init__(self, *answers: SessionAnswer, max_age: int | None = None) -> None:
        self.now = 1000.0
        self.answers = list(answers)
        self.asked: list[bool] = []
        self.max_age = max_age
        self.session = CookieSession(self.ask, clock=lambda: self.now)

    async def ask(self, with_basic: bool) -> SessionAnswer:
        self.asked.append(with_basic)
        await asyncio.sleep(0)
        if self.answers:
            return self.answers.pop(0)
        age = "" if self.max_age is None else f"; Max-Age={self.max_age}"
        return SessionAnswer(200, [f"AuthSession=c{len(self.asked)}; Version=1{age}; Path=/; HttpOnly"])


async def test_do_refresh_without_max_age_after_550_seconds() -> None:
    server = Sessions()
    await server.session.cookie()
    server.now += 551
    assert await server.session.cookie() == "AuthSession=c2"


async def test_do_refresh_with_max_age_before_it_is_over() -> None:
    server = Sessions(max_age=100)
    await server.session.cookie()
    server.now += 89
    assert await server.session.cookie() == "AuthSession=c1"
    server.now += 2
    assert await server.session.cookie() == "AuthSession=c2"


@pytest.mark.parametrize("max_age", [0, 1, 5])
async def test_a_cookie_of_a_short_life_is_renewed_no_more_than_every_five_seconds(max_age: int) -> None:
    server = Sessions(max_age=max_age)
    for _ in range(10):
        await server.session.cookie()
        server.now += 1
    assert len(server.asked) == 2


async def test_process_auth_failure_renews_once_for_all_who_notice() -> None:
    server = Sessions()
    cookie = await server.session.cookie()
    assert cookie is not None
    server.now += 6
    assert await asyncio.gather(*(server.session.refused(cookie, 401) for _ in range(5))) == [True] * 5
    assert len(server.asked) == 2
    assert await server.session.cookie() == "AuthSession=c2"


async def test_process_auth_failure_too_frequent_is_no_reason_to_ask_again() -> None:
    server = Sessions()
    cookie = await server.session.cookie()
    assert cookie is not None
    server.now += 4
    assert not await server.session.refused(cookie, 401)
    assert len(server.asked) == 1


async def test_a_cookie_that_held_and_is_not_known_any_more_is_renewed_at_once() -> None:
    server = Sessions()
    cookie = await server.session.cookie()
    assert cookie is not None
    server.session.given([], held=True)
    assert not await server.session.refused(cookie, 403)
    assert await server.session.refused(cookie, 401)
    renewed = await server.session.cookie()
    assert renewed == "AuthSession=c2"
    # The new one has to hold first.
    assert not await server.session.refused(renewed, 401)
    assert len(server.asked) == 2


async def test_process_ok_update_cookie_takes_the_one_that_an_answer_brings() -> None:
    server = Sessions()
    await server.session.cookie()
    server.session.given(["Other=1", "AuthSession=new; Max-Age=100"])
    assert await server.session.cookie() == "AuthSession=new"


async def test_init_state_401_with_require_valid_user_asks_with_basic_from_then_on() -> None:
    server = Sessions(SessionAnswer(401, (), www_authenticate=True))
    assert await server.session.cookie() == "AuthSession=c2"
    server.now += 600
    await server.session.cookie()
    assert server.asked == [False, True, True]


@pytest.mark.parametrize("answer", [SessionAnswer(404), SessionAnswer(405), SessionAnswer(200)])
async def test_init_state_404_means_basic(answer: SessionAnswer) -> None:
    server = Sessions(answer)
    assert await server.session.cookie() is None
    assert server.session.mode == "basic"
    assert not await server.session.refused(None, 401)
    assert await server.session.cookie() is None
    assert len(server.asked) == 1


@pytest.mark.parametrize("age", ['"²"', "9" * 400, "9" * 5000], ids=["no digit of ours", "no float", "no int"])
async def test_an_age_that_is_no_number_of_seconds_counts_as_none(age: str) -> None:
    server = Sessions(SessionAnswer(200, [f"AuthSession=odd; Max-Age={age}"]))
    assert await server.session.cookie() == "AuthSession=odd"
    server.now += 549
    assert await server.session.cookie() == "AuthSession=odd"
    server.now += 2
    assert await server.session.cookie() == "AuthSession=c2"
