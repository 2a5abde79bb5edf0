"""The server's time goes on between two answers, does not tremble, and follows the server when it is set."""

from __future__ import annotations

from perdure.clock import FakeClock
from perdure.store.server_clock import ServerClock

SERVER_MS = 1_800_000_000_000


def test_the_time_is_the_answer_and_what_passed_since() -> None:
    way_ms = 40
    local = FakeClock(steady_ms=5_000)
    clock = ServerClock(local)

    clock.learn(SERVER_MS, sent_ms=5_000 - 2 * way_ms, received_ms=5_000)

    assert clock.now_ms() == SERVER_MS + way_ms  # the question was half of the way
    local.advance(1_234)
    assert clock.now_ms() == SERVER_MS + way_ms + 1_234
    assert clock.boot_ms() == local.boot_ms()


def test_a_jump_of_the_local_wall_clock_is_not_felt() -> None:
    local = FakeClock()
    clock = ServerClock(local)
    clock.learn(SERVER_MS, sent_ms=0, received_ms=0)

    local.jump(-3_600_000)

    assert clock.now_ms() == SERVER_MS


def test_an_answer_that_allows_the_time_we_tell_changes_nothing() -> None:
    clock = ServerClock(FakeClock())
    clock.learn(SERVER_MS, sent_ms=0, received_ms=0)

    clock.learn(SERVER_MS - 45, sent_ms=-60, received_ms=0)

    assert clock.now_ms() == SERVER_MS


def test_an_answer_that_rules_it_out_is_followed() -> None:
    clock = ServerClock(FakeClock())
    clock.learn(SERVER_MS, sent_ms=0, received_ms=0)

    clock.learn(SERVER_MS - 5_000, sent_ms=-2, received_ms=0)

    assert clock.now_ms() == SERVER_MS - 5_000 + 1


def test_the_server_is_asked_once_a_minute_by_one_caller() -> None:
    local = FakeClock()
    clock = ServerClock(local)
    clock.learn(SERVER_MS, sent_ms=0, received_ms=0)

    assert not clock.is_due()
    local.advance(60_000)
    assert [clock.is_due() for _ in range(3)] == [True, False, False]
    local.advance(60_000)  # whoever asked got no answer
    assert clock.is_due()
