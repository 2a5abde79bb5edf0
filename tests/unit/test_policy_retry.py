"""Retries: what an error says, how long a wait is, and that nothing is tried once too often."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import inspect
import socket
import ssl
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.errors import BadInput
from perdure.policy.retry import ErrorClass, RetryPolicy, classify, delay_s, should_retry, with_retry

RETRIABLE, PERMANENT, UNKNOWN = ErrorClass.RETRIABLE, ErrorClass.PERMANENT, ErrorClass.UNKNOWN
POLICIES = st.builds(
    RetryPolicy,
    retries=st.integers(0, 1_000),
    base_s=st.floats(0, 1e300),
    factor=st.floats(1, 1e300),
    cap_s=st.floats(0, 1e300),
    jitter=st.floats(0, 1),
    retry_unknown=st.booleans(),
)


class HttpError(Exception):
    """What HTTP clients raise: the code is an attribute of the error."""

    def __init__(self, text: str = "", **attributes: object) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


class Response:
    """What other HTTP clients hang the code on."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


# -- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Request timeout",
        "the read timed out",
        "connect ECONNREFUSED 127.0.0.1:80",
        "ECONNRESET",
        "write EPIPE",
        "ETIMEDOUT",
        "rate limit reached",
        "rate-limit",
        "HTTP 429",
        "status=503",
        "(502)",
        "503: try later",
        "SQLITE_BUSY",
        "database is locked",
        "Resource temporarily unavailable",
        "Too Many Requests",
        "network unreachable",
        "socket hang up",
        "Connection refused",
    ],
)
def test_a_text_about_a_passing_trouble_is_retriable(text: str) -> None:
    assert classify(text) is RETRIABLE


@pytest.mark.parametrize(
    "text",
    [
        "Permission denied",
        "EACCES: /etc/shadow",
        "authentication failed",
        "Unauthorized",
        "HTTP 401",
        "error 403.",
        "404 page",
        "model not found",
        "501 Not Implemented",
        "invalid API token",
        "SQLITE_CONSTRAINT",
        "UNIQUE constraint failed: t.id",
        "syntax error near SELECT",
        "TypeError: x",
        "type error",
        "Reference Error",
    ],
)
def test_a_text_about_a_lasting_trouble_is_permanent(text: str) -> None:
    assert classify(text) is PERMANENT


@pytest.mark.parametrize("text", ["", "something broke", "stovepipe", "exit code 1"])
def test_any_other_text_is_unknown(text: str) -> None:
    assert classify(text) is UNKNOWN


@pytest.mark.parametrize("code", ["429", "502", "503", "401", "403", "404"])
@pytest.mark.parametrize(
    "form", ["order 1{}0", "{}ms", "0.{}", "{}.5 s", "{},000 rows", "a-{}-b", "/items/{}", "#{}", "x{}", "{}_1"]
)
def test_a_code_inside_a_word_or_number_says_nothing(code: str, form: str) -> None:
    assert classify(form.format(code)) is UNKNOWN


def test_retriable_words_are_looked_for_first() -> None:
    assert classify("timeout after 401") is RETRIABLE
    assert classify("not found, 503") is RETRIABLE


def test_a_text_of_megabytes_is_read_at_both_ends_and_at_once() -> None:
    assert classify("invalid " * 1_000_000) is UNKNOWN
    assert classify("x " * 1_000_000 + "timed out") is RETRIABLE
    assert classify("unauthorized " + "x " * 1_000_000) is PERMANENT


@given(text=st.text())
def test_every_text_has_a_class_and_the_same_as_an_error_that_says_it(text: str) -> None:
    assert classify(text) in ErrorClass
    assert classify(RuntimeError(text)) is classify(text)


# -- type -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError("401"), RETRIABLE),
        (ConnectionResetError("not found"), RETRIABLE),
        (OSError(errno.ENETUNREACH, "permission denied"), RETRIABLE),
        (OSError(errno.EAGAIN, "x"), RETRIABLE),
        (OSError(errno.ENOSPC, "No space left on device"), UNKNOWN),
        (OSError(errno.EROFS, "timeout"), PERMANENT),
        (PermissionError("timeout"), PERMANENT),
        (FileNotFoundError("timeout"), PERMANENT),
        (ValueError("timeout"), PERMANENT),
        (TypeError("503"), PERMANENT),
        (KeyError("timeout"), PERMANENT),
        (IndexError("network"), PERMANENT),
        (ZeroDivisionError("timeout"), PERMANENT),
        (RuntimeError("boom"), UNKNOWN),
        (RuntimeError("timeout"), RETRIABLE),
    ],
)
def test_the_type_decides_before_the_text(error: Exception, expected: ErrorClass) -> None:
    assert classify(error) is expected


def test_numbers_of_other_libraries_are_no_errno() -> None:
    assert classify(ssl.SSLError(1, "handshake failed")) is UNKNOWN
    assert classify(ssl.SSLCertVerificationError(1, "certificate verify failed")) is PERMANENT
    assert classify(socket.gaierror(socket.EAI_AGAIN, "try again")) is RETRIABLE
    assert classify(socket.gaierror(errno.ENOENT, "no such host")) is UNKNOWN


@pytest.mark.parametrize("name", ["status_code", "status", "code"])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (429, RETRIABLE),
        (408, RETRIABLE),
        (500, RETRIABLE),
        (503, RETRIABLE),
        (529, RETRIABLE),
        (501, PERMANENT),
        (400, PERMANENT),
        (401, PERMANENT),
        (404, PERMANENT),
        (422, PERMANENT),
        (409, UNKNOWN),
    ],
)
def test_a_status_code_is_a_type_and_decides_before_the_text(name: str, status: int, expected: ErrorClass) -> None:
    misleading = "permission denied" if expected is RETRIABLE else "timeout"

    assert classify(HttpError(misleading, **{name: status})) is expected


def test_a_status_code_on_the_response_counts_too() -> None:
    assert classify(HttpError("timeout", response=Response(404))) is PERMANENT


@pytest.mark.parametrize("code", [True, 0, 1, 200, 302, 1006, "503", None, 5.03])
def test_a_code_that_is_no_http_failure_is_left_alone(code: object) -> None:
    assert classify(HttpError("permission denied", code=code)) is PERMANENT
    assert classify(HttpError("timeout", code=code)) is RETRIABLE


def test_a_status_code_decides_before_a_built_in_class() -> None:
    class Unavailable(ValueError):
        status_code = 503

    assert classify(Unavailable("x")) is RETRIABLE


def test_the_name_of_a_class_speaks_before_its_text() -> None:
    class ReadTimeout(Exception): ...

    class AuthenticationError(Exception): ...

    assert classify(ReadTimeout("")) is RETRIABLE
    assert classify(ReadTimeout("unauthorized")) is RETRIABLE
    assert classify(AuthenticationError("timeout")) is PERMANENT


def test_an_error_that_cannot_be_read_is_unknown() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        @property
        def status_code(self) -> int:
            raise RuntimeError("no code")

    assert classify(Broken()) is UNKNOWN


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError("timeout"),
        concurrent.futures.CancelledError("timeout"),
        errors.Suspend("timeout"),
        errors.Cancelled("timeout"),
        KeyboardInterrupt("timeout"),
        SystemExit(503),
        BaseExceptionGroup("timeout", [asyncio.CancelledError(), TimeoutError()]),
    ],
)
def test_cancellation_is_never_retried(error: BaseException) -> None:
    assert classify(error) is PERMANENT


def test_a_group_is_as_bad_as_its_worst_member() -> None:
    assert classify(ExceptionGroup("g", [TimeoutError(), ConnectionError()])) is RETRIABLE
    assert classify(ExceptionGroup("g", [TimeoutError(), RuntimeError("boom")])) is UNKNOWN
    assert classify(ExceptionGroup("g", [TimeoutError(), ExceptionGroup("h", [ValueError()])])) is PERMANENT


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.NotApplied("permission denied"), RETRIABLE),
        (errors.StoreBusy("permission denied"), RETRIABLE),
        (errors.StoreFull("x"), RETRIABLE),
        (errors.InboxFull("not found"), RETRIABLE),
        (errors.CommitUnknown("timeout"), UNKNOWN),
        (errors.BudgetExceeded("timeout", limit="tokens"), PERMANENT),
        (errors.Denied("timeout"), PERMANENT),
        (errors.Expired("timeout"), PERMANENT),
        (errors.OutcomeUnknown("timeout"), PERMANENT),
        (errors.Drift("timeout"), PERMANENT),
        (errors.LeaseLost("timeout"), PERMANENT),
        (errors.TaskFailed("t", errors.Error("TimeoutError", "timeout")), PERMANENT),
        (errors.NotSerializable("timeout"), PERMANENT),
        (errors.ToolError("timeout"), RETRIABLE),
        (errors.ToolError("boom"), UNKNOWN),
    ],
)
def test_errors_of_perdure_are_known_by_class(error: Exception, expected: ErrorClass) -> None:
    assert classify(error) is expected


def test_every_error_of_perdure_has_a_class_of_its_own() -> None:
    # Those that speak through their text: the two roots, and the stand-in for somebody else's error.
    by_text = {errors.PerdureError, errors.StoreError, errors.ToolError}
    tree = [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, Exception) and each not in by_text
    ]

    for error_type in tree:
        # Two texts that pull in opposite directions: a class that decides does not listen to either.
        hopeful, hopeless = _blank(error_type, "timeout"), _blank(error_type, "unauthorized")
        assert classify(hopeful) is classify(hopeless), error_type.__name__


def _blank(error_type: type[Exception], text: str) -> Exception:
    # Skips constructors that want ids: only the class and the text matter here.
    return error_type.__new__(error_type, text)


# -- waits ----------------------------------------------------------------------------------


def test_the_wait_doubles_from_one_second_to_thirty() -> None:
    policy = RetryPolicy(jitter=0)

    assert [delay_s(policy, n, Random(1)) for n in range(7)] == [1, 2, 4, 8, 16, 30, 30]


@given(policy=POLICIES, attempt=st.integers(0, 10**6), seed=st.integers())
def test_a_wait_is_never_negative_never_over_the_cap_and_never_below_the_plain_one(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    plain = delay_s(
        RetryPolicy(base_s=policy.base_s, factor=policy.factor, cap_s=policy.cap_s, jitter=0), attempt, Random()
    )

    wait = delay_s(policy, attempt, Random(seed))

    assert 0 <= plain <= wait <= policy.cap_s
    assert wait <= plain * (1 + policy.jitter) or wait == pytest.approx(plain * (1 + policy.jitter))


def test_jitter_spreads_the_waits_over_a_quarter() -> None:
    random = Random(7)

    waits = [delay_s(RetryPolicy(), 0, random) for _ in range(1_000)]

    assert 1.0 <= min(waits) < 1.02
    assert 1.23 < max(waits) <= 1.25


def test_a_seeded_wait_repeats_and_draws_once() -> None:
    random, reference = Random(3), Random(3)

    delay_s(RetryPolicy(), 9, random)
    reference.random()

    assert random.getstate() == reference.getstate()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retries", -1),
        ("retries", 1_001),
        ("retries", 1.0),
        ("retries", True),
        ("base_s", -0.1),
        ("base_s", float("nan")),
        ("base_s", "1"),
        ("factor", 0.5),
        ("factor", float("inf")),
        ("cap_s", -1),
        ("cap_s", float("inf")),
        ("cap_s", 10**400),
        ("jitter", 1.1),
        ("jitter", -0.1),
        ("retry_unknown", 1),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_its_field(field: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"^{field}: ") as refused:
        RetryPolicy(**{field: value})  # type: ignore[arg-type]  # the door is tested with what types forbid

    assert refused.value.field == field


def test_a_negative_attempt_is_refused() -> None:
    with pytest.raises(BadInput):
        delay_s(RetryPolicy(), -1, Random())
    with pytest.raises(BadInput):
        should_retry(RetryPolicy(), RETRIABLE, -1)


@given(policy=POLICIES, error_class=st.sampled_from(list(ErrorClass)), attempt=st.integers(0, 2_000))
def test_only_what_may_help_is_retried_and_only_so_often(
    policy: RetryPolicy, error_class: ErrorClass, attempt: int
) -> None:
    allowed = error_class is RETRIABLE or (error_class is UNKNOWN and policy.retry_unknown)

    assert should_retry(policy, error_class, attempt) == (allowed and attempt < policy.retries)


# -- the loop -------------------------------------------------------------------------------


class Sleeper:
    """Notes the waits and returns at once."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, wait_s: float) -> None:
        self.waits.append(wait_s)


def failing(*outcomes: Exception | str) -> Callable[[], Awaitable[str]]:
    """A call that raises or returns the next outcome each time."""
    left = iter(outcomes)

    async def call() -> str:
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return call


async def test_a_call_that_recovers_returns_its_value_and_what_it_took() -> None:
    sleep = Sleeper()

    result = await with_retry(
        failing(TimeoutError(), RuntimeError("boom"), "done"),
        policy=RetryPolicy(jitter=0),
        sleep=sleep,
        random=Random(1),
    )

    assert (result.success, result.value, result.error) == (True, "done", None)
    assert (result.attempts, result.total_delay_s) == (3, 3.0)
    assert sleep.waits == [1.0, 2.0]


async def test_a_call_that_never_recovers_is_tried_four_times_and_not_waited_for_at_the_end() -> None:
    sleep = Sleeper()
    failures = [TimeoutError(str(n)) for n in range(4)]

    result = await with_retry(failing(*failures), policy=RetryPolicy(), sleep=sleep, random=Random(1))

    assert not result.success
    assert result.value is None
    assert result.error is failures[-1]
    assert result.attempts == 4
    assert len(sleep.waits) == 3
    assert result.total_delay_s == sum(sleep.waits)


async def test_a_permanent_error_is_not_retried() -> None:
    sleep = Sleeper()

    result = await with_retry(failing(ValueError("no"), "late"), policy=RetryPolicy(), sleep=sleep, random=Random(1))

    assert (result.success, result.attempts, sleep.waits) == (False, 1, [])


async def test_an_unknown_error_is_not_retried_when_the_policy_says_so() -> None:
    policy = RetryPolicy(retry_unknown=False)

    result = await with_retry(failing(RuntimeError("boom")), policy=policy, sleep=Sleeper(), random=Random(1))

    assert result.attempts == 1


async def test_a_value_of_none_is_a_success() -> None:
    async def nothing() -> None:
        return None

    result = await with_retry(nothing, policy=RetryPolicy(), sleep=Sleeper(), random=Random(1))

    assert (result.success, result.value) == (True, None)


@pytest.mark.parametrize("cancel", [asyncio.CancelledError, concurrent.futures.CancelledError])
async def test_cancellation_inside_the_call_passes_through_at_once(cancel: type[BaseException]) -> None:
    sleep = Sleeper()

    async def cancelled() -> str:
        raise cancel

    with pytest.raises(cancel):
        await with_retry(cancelled, policy=RetryPolicy(), sleep=sleep, random=Random(1))

    assert sleep.waits == []


async def test_cancellation_during_the_wait_passes_through() -> None:
    async def cancelled_sleep(_wait_s: float) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await with_retry(failing(TimeoutError(), "late"), policy=RetryPolicy(), sleep=cancelled_sleep, random=Random(1))
