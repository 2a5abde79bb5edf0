"""Which errors are worth another try, how long to wait, and a loop that does both for one call.

A typed exception decides before its text, because a text is written for people: "the order 503 was not found, timeout"
says nothing reliable. Does not wait by itself and owns no clock: sleeping and randomness are handed in. The durable
retry of a task uses the same numbers, but its wait is a row and not a sleep.
"""

from __future__ import annotations

import concurrent.futures
import errno
import re
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, Generic, TypeVar

from perdure import errors
from perdure.errors import BadInput

T = TypeVar("T")

_RETRIES_MAX: Final = 1_000


class ErrorClass(StrEnum):
    """What an error says about trying again."""

    RETRIABLE = "retriable"  # the world may be better in a moment
    PERMANENT = "permanent"  # the same call fails the same way
    UNKNOWN = "unknown"  # nobody can tell; the policy decides


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently to try again. Raises BadInput naming the field that is out of range.

    The first try is not a retry: `retries=3` makes at most four tries. `cap_s` bounds every wait, jitter included,
    and wins over a greater `base_s`. `jitter` is the greatest share of a wait that is added at random.
    """

    retries: int = 3
    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 30.0
    jitter: float = 0.25
    retry_unknown: bool = True

    def __post_init__(self) -> None:
        _check_whole("retries", self.retries, low=0, high=_RETRIES_MAX)
        _check_number("base_s", self.base_s, low=0.0)
        _check_number("factor", self.factor, low=1.0)
        _check_number("cap_s", self.cap_s, low=0.0)
        _check_number("jitter", self.jitter, low=0.0, high=1.0)
        _check_bool("retry_unknown", self.retry_unknown)


@dataclass(frozen=True, slots=True)
class RetryResult(Generic[T]):
    """How a retried call ended: `value` when `success`, else `error`, the last one. Counts every try and every wait."""

    success: bool
    value: T | None
    error: Exception | None
    attempts: int
    total_delay_s: float


def classify(error: BaseException | str) -> ErrorClass:
    """Say whether trying again may help. Total: any error and any text gets a class, and none raises.

    In this order: cancellation is permanent; a group is as bad as its worst member; perdure's own errors; a status
    code that the exception carries; the built-in class; the name of the class; the text, retriable words first.
    """
    if isinstance(error, str):
        return _by_text(error) or ErrorClass.UNKNOWN
    if is_cancellation(error):
        return ErrorClass.PERMANENT
    if isinstance(error, ExceptionGroup):
        return _worst([classify(member) for member in error.exceptions])
    return (
        _by_own_class(error)
        or _by_status(error)
        or _by_builtin_class(error)
        or _by_text(type(error).__name__)
        or _by_text(_text(error))
        or ErrorClass.UNKNOWN
    )


def is_cancellation(error: BaseException) -> bool:
    """True for what asks the code to stop and reports no failure; it passes through and is never retried."""
    # asyncio's CancelledError, Suspend, KeyboardInterrupt and their like are no Exception; a pool's future alone is.
    return not isinstance(error, Exception) or isinstance(error, concurrent.futures.CancelledError)


def should_retry(policy: RetryPolicy, error_class: ErrorClass, attempt: int) -> bool:
    """Say whether to try again after the try numbered `attempt` (the first is 0) failed with this class."""
    _check_attempt(attempt)
    if attempt >= policy.retries:
        return False
    match error_class:
        case ErrorClass.RETRIABLE:
            return True
        case ErrorClass.PERMANENT:
            return False
        case ErrorClass.UNKNOWN:
            return policy.retry_unknown


def delay_s(policy: RetryPolicy, attempt: int, random: Random) -> float:
    """Seconds to wait after the try numbered `attempt` (the first is 0) failed; never more than `policy.cap_s`.

    Draws from `random` exactly once, so that a seeded run repeats.
    """
    _check_attempt(attempt)
    share = random.random() * policy.jitter
    try:
        plain = min(policy.base_s * policy.factor**attempt, policy.cap_s)
    except OverflowError:  # 2.0 ** 1024 is no float; what is that large is over any cap, unless the base is nothing
        plain = policy.cap_s if policy.base_s else 0.0
    # The cap goes on last: jitter added to a wait that is already at the cap would lift it over the cap.
    return min(plain + plain * share, policy.cap_s)


async def with_retry(
    fn: Callable[[], Awaitable[T]],
    *,
    policy: RetryPolicy,
    sleep: Callable[[float], Awaitable[object]],
    random: Random,
) -> RetryResult[T]:
    """Call `fn` until it succeeds or the policy says stop, and tell how it went; never raises what `fn` failed with.

    Cancellation passes through at once, from `fn` as well as from `sleep`. There is no wait after the last try.
    """
    attempt = 0
    total_delay_s = 0.0
    while True:
        try:
            value = await fn()
        except Exception as error:
            if is_cancellation(error):
                raise
            if not should_retry(policy, classify(error), attempt):
                return RetryResult(
                    success=False, value=None, error=error, attempts=attempt + 1, total_delay_s=total_delay_s
                )
        else:
            return RetryResult(success=True, value=value, error=None, attempts=attempt + 1, total_delay_s=total_delay_s)
        # Outside the handler: a wait inside it would keep the failed try's frames alive and chain later errors to it.
        wait_s = delay_s(policy, attempt, random)
        await sleep(wait_s)
        total_delay_s += wait_s
        attempt += 1


# -- what a type says -----------------------------------------------------------------------

_OWN: Final[tuple[tuple[ErrorClass, tuple[type[BaseException], ...]], ...]] = (
    # First the exceptions to their parents: a slot, a lock and space come free without anybody changing the call.
    (ErrorClass.RETRIABLE, (errors.NotApplied, errors.StoreBusy, errors.StoreFull, errors.InboxFull)),
    (ErrorClass.UNKNOWN, (errors.CommitUnknown,)),
    (
        ErrorClass.PERMANENT,
        (
            errors.BadInput,
            errors.Refused,
            errors.NotFound,
            errors.NotInTask,
            errors.NoTaskContext,
            errors.WrongThread,
            errors.IllegalTransition,
            errors.Drift,
            errors.BadDelivery,
            errors.Expired,
            errors.Denied,
            errors.OutcomeUnknown,
            errors.TaskFailed,
            errors.RefusedBySchema,
            errors.StoreClosed,
            errors.LeaseLost,
            errors.ForkedStore,
            errors.SchemaTooNew,
            errors.Damaged,
            errors.NetworkFileSystem,
            errors.InvariantError,
        ),
    ),
)

_PERMANENT_CLASSES: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NameError,
    ArithmeticError,
    AssertionError,
    ImportError,
    SyntaxError,
    RecursionError,
)

_RETRIABLE_ERRNOS: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EPIPE,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
    }
)

_PERMANENT_ERRNOS: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EXDEV,
        errno.EBADF,
        errno.EINVAL,
        errno.ENOSYS,
        errno.ENOEXEC,
        errno.ESRCH,
        errno.ECHILD,
    }
)


def _by_own_class(error: BaseException) -> ErrorClass | None:
    for error_class, types in _OWN:
        if isinstance(error, types):
            return error_class
    return None


def _by_status(error: BaseException) -> ErrorClass | None:
    response = _read(error, "response")
    for owner, name in ((error, "status_code"), (error, "status"), (error, "code"), (response, "status_code")):
        status = _read(owner, name)
        # A `code` may be anything: only what can be an HTTP failure counts (1006 is a websocket's, True is no code).
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            return _by_status_code(int(status))
    return None


def _by_status_code(status: int) -> ErrorClass:
    match status:
        case 408 | 425 | 429:
            return ErrorClass.RETRIABLE
        case 409 | 423:  # someone else is at it: it may pass, or may never
            return ErrorClass.UNKNOWN
        case 501 | 505:
            return ErrorClass.PERMANENT
        case _:
            return ErrorClass.RETRIABLE if status >= 500 else ErrorClass.PERMANENT


def _by_builtin_class(error: BaseException) -> ErrorClass | None:
    match error:
        case ssl.SSLError() | socket.gaierror() | socket.herror():
            return _by_foreign_errno(error)
        case TimeoutError() | ConnectionError() | BlockingIOError() | InterruptedError():
            return ErrorClass.RETRIABLE
        case PermissionError() | FileNotFoundError() | FileExistsError() | IsADirectoryError() | NotADirectoryError():
            return ErrorClass.PERMANENT
        case OSError() if error.errno in _RETRIABLE_ERRNOS:
            return ErrorClass.RETRIABLE
        case OSError() if error.errno in _PERMANENT_ERRNOS:
            return ErrorClass.PERMANENT
        case _:
            return ErrorClass.PERMANENT if isinstance(error, _PERMANENT_CLASSES) else None


def _by_foreign_errno(error: OSError) -> ErrorClass | None:
    # These put numbers of their own library into errno (a failed handshake has 1, which elsewhere is EPERM),
    # so the errno tables must not see them.
    if isinstance(error, ssl.SSLCertVerificationError):
        return ErrorClass.PERMANENT
    if isinstance(error, TimeoutError) or (isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN):
        return ErrorClass.RETRIABLE
    return None


def _worst(classes: list[ErrorClass]) -> ErrorClass:
    for error_class in (ErrorClass.PERMANENT, ErrorClass.UNKNOWN):
        if error_class in classes:
            return error_class
    return ErrorClass.RETRIABLE


# -- what a text says -----------------------------------------------------------------------

# A status code counts only as a word: not inside 14290, 0.429, 429ms, order-503-a, /items/404 or #401.
_CODE: Final = r"(?<![\w/#-])(?<!\d[.,])(?:{codes})(?![\w/-]|[.,]\d)"

_RETRIABLE_TEXT: Final = re.compile(
    r"time.?out|timed out|rate.?limit|too many requests|network|socket hang up"
    r"|connection (?:error|refused|reset|aborted)|broken pipe|temporarily unavailable|temporary failure"
    r"|database is locked|SQLITE_BUSY"
    r"|(?-i:\b(?:ECONNREFUSED|ECONNRESET|EPIPE|ETIMEDOUT)\b)|" + _CODE.format(codes="429|502|503"),
    re.IGNORECASE,
)

_PERMANENT_TEXT: Final = re.compile(
    r"permission.?denied|authentication|unauthorized|not.?found|not.?implemented|invalid.*token|SQLITE_CONSTRAINT"
    r"|constraint failed|violates \S+ constraint|syntax.?error|type ?error|reference ?error"
    r"|(?-i:\bEACCES\b)|" + _CODE.format(codes="401|403|404"),
    re.IGNORECASE,
)

_TEXT_END: Final = 2_000


def _by_text(text: str) -> ErrorClass | None:
    # Both ends are enough, since a message opens with its point or a traceback closes with it; the bound keeps
    # "invalid.*token" from taking minutes over a text of megabytes.
    if len(text) > 2 * _TEXT_END:
        text = f"{text[:_TEXT_END]}\n{text[-_TEXT_END:]}"
    if _RETRIABLE_TEXT.search(text):
        return ErrorClass.RETRIABLE
    if _PERMANENT_TEXT.search(text):
        return ErrorClass.PERMANENT
    return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error that is being classified
        return ""


def _read(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property that raises has told us nothing; the next sign decides
        return None


# -- what a policy may hold -----------------------------------------------------------------


def _check_whole(field: str, value: object, *, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"{field}: {value!r} is not a whole number from {low:,} to {high:,}", field=field)


def _check_number(field: str, value: object, *, low: float, high: float = sys.float_info.max) -> None:
    # NaN and infinity fail the comparison too, and so does an int that is larger than any float.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        upper = "" if high == sys.float_info.max else f" and at most {high:g}"
        raise BadInput(f"{field}: {value!r} is not a finite number of at least {low:g}{upper}", field=field)


def _check_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise BadInput(f"{field}: {value!r} is not True or False", field=field)


def _check_attempt(attempt: int) -> None:
    if attempt < 0:
        raise BadInput(f"attempt: {attempt} is below 0; the first try is 0", field="attempt")
