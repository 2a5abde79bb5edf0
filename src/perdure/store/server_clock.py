"""A database server's time, without asking for it in every transaction.

Workers on many machines share one server, so its clock is the time of all of them. It is asked when a connection is
opened and now and then after that; in between it is the last answer plus what passed on this machine's steady clock.
"""

from __future__ import annotations

import threading

from perdure.clock import Clock

# Two crystals part by up to some 50 ppm: 3 ms a minute.
_ASK_EVERY_MS = 60_000


class ServerClock:
    """The server's wall clock and this machine's steady one. Safe to use from any thread."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._mutex = threading.Lock()
        self._offset_ms: int | None = None
        self._ask_at_ms = 0

    def now_ms(self) -> int:
        """The server's time, from the last answer. There must have been one."""
        assert self._offset_ms is not None, "the server was not asked yet"
        return self._offset_ms + self._local.boot_ms()

    def boot_ms(self) -> int:
        return self._local.boot_ms()

    def learn(self, server_ms: int, *, sent_ms: int, received_ms: int) -> None:
        """Take in that the server read `server_ms` at some moment between two readings of the steady clock.

        While the new answer allows the time we already tell, that one is kept, so that it does not tremble.
        """
        offset_ms = server_ms - (sent_ms + received_ms) // 2
        doubt_ms = (received_ms - sent_ms) // 2 + 1
        with self._mutex:
            if self._offset_ms is None or abs(offset_ms - self._offset_ms) > doubt_ms:
                self._offset_ms = offset_ms
            self._ask_at_ms = received_ms + _ASK_EVERY_MS

    def is_due(self) -> bool:
        """True once in a while, to one caller alone: ask the server and tell `learn`."""
        now_ms = self._local.boot_ms()
        if now_ms < self._ask_at_ms:
            return False
        with self._mutex:
            if now_ms < self._ask_at_ms:
                return False
            self._ask_at_ms = now_ms + _ASK_EVERY_MS
            return True
