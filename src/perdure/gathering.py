"""The types of `gather`: those of up to five calls each for itself, so that its results can be taken apart.

What it gives is a list, however many there are. Of few it is typed as a tuple, as that of `asyncio.gather` is: no type
tells of a list what stands where.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Literal, Never, Protocol, TypeAlias, TypeVar, cast, overload

from perdure.definitions import Bound
from perdure.runtime import verbs

R = TypeVar("R")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
Call: TypeAlias = "Awaitable[R] | Bound[R]"


class Gather(Protocol):
    """`gather`, as type checkers see it."""

    @overload
    async def __call__(self, a1: Call[R], /, *, return_exceptions: Literal[False] = False) -> list[R]: ...
    @overload
    async def __call__(self, a1: Call[R], /, *, return_exceptions: bool) -> list[R | BaseException]: ...
    @overload
    async def __call__(
        self, a1: Call[T1], a2: Call[T2], /, *, return_exceptions: Literal[False] = False
    ) -> tuple[T1, T2]: ...
    @overload
    async def __call__(
        self, a1: Call[T1], a2: Call[T2], /, *, return_exceptions: bool
    ) -> tuple[T1 | BaseException, T2 | BaseException]: ...
    @overload
    async def __call__(
        self, a1: Call[T1], a2: Call[T2], a3: Call[T3], /, *, return_exceptions: Literal[False] = False
    ) -> tuple[T1, T2, T3]: ...
    @overload
    async def __call__(
        self, a1: Call[T1], a2: Call[T2], a3: Call[T3], /, *, return_exceptions: bool
    ) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException]: ...
    @overload
    async def __call__(
        self, a1: Call[T1], a2: Call[T2], a3: Call[T3], a4: Call[T4], /, *, return_exceptions: Literal[False] = False
    ) -> tuple[T1, T2, T3, T4]: ...
    @overload
    async def __call__(
        self, a1: Call[T1], a2: Call[T2], a3: Call[T3], a4: Call[T4], /, *, return_exceptions: bool
    ) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException, T4 | BaseException]: ...
    @overload
    async def __call__(
        self,
        a1: Call[T1],
        a2: Call[T2],
        a3: Call[T3],
        a4: Call[T4],
        a5: Call[T5],
        /,
        *,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4, T5]: ...
    @overload
    async def __call__(
        self, a1: Call[T1], a2: Call[T2], a3: Call[T3], a4: Call[T4], a5: Call[T5], /, *, return_exceptions: bool
    ) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException, T4 | BaseException, T5 | BaseException]: ...
    @overload
    async def __call__(
        self,
        a1: Call[R],
        a2: Call[R],
        a3: Call[R],
        a4: Call[R],
        a5: Call[R],
        a6: Call[R],
        /,
        *aws: Call[R],
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    async def __call__(
        self,
        a1: Call[R],
        a2: Call[R],
        a3: Call[R],
        a4: Call[R],
        a5: Call[R],
        a6: Call[R],
        /,
        *aws: Call[R],
        return_exceptions: bool,
    ) -> list[R | BaseException]: ...
    @overload
    async def __call__(self, *, return_exceptions: bool = False) -> list[Never]: ...


gather: Final = cast("Gather", verbs.gather)
