"""Tells waiting workers that a commit may concern them: at once in this process, by NOTIFY in others.

NOTIFY takes a lock of the whole database until its transaction has ended. Inside the transactions that do the work
it would make every commit wait for the one before, so one connection of its own sends it after them, one for all
that piled up meanwhile. A hint can be lost with a connection: the tables are the truth and everybody also polls.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable

import psycopg

from perdure.store.postgres_connection import Connection
from perdure.store.wakeup import Listeners

_PAUSE_S = 0.5
# Closing waits for the last hint, so a silent server must not keep it for long.
_REPLY_S = 5.0


class Bell:
    """The bell of one database and schema in this process. Its threads and connections exist once they are needed."""

    def __init__(self, connect: Callable[[], Connection], *, schema: int) -> None:
        self._connect = connect
        self._schema = str(schema)
        self._listeners = Listeners()
        self._mutex = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._due = threading.Event()
        self._told = False
        self._notifier_pid = 0
        self._closing = threading.Event()
        self._stop, self._stopped = socket.socketpair()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each hint, from whatever thread; returns how to stop."""
        stop = self._listeners.add(wake)
        self._need("hear", self._hear)
        return stop

    def tell(self) -> None:
        """Ring here now and in every other process soon. Does not wait for the server."""
        self._listeners.ring()
        self._told = True
        self._due.set()
        self._need("notify", self._notify)

    def close(self) -> None:
        """Send the last hint, if the server takes it, and stop listening. May be called twice."""
        with self._mutex:
            if self._closing.is_set():
                return
            self._closing.set()
        self._listeners.clear()
        self._due.set()
        # A byte, because closing our end would not be seen while a forked child still holds it.
        self._stop.send(b"1")
        for thread in self._threads.values():
            thread.join()
        self._stop.close()
        self._stopped.close()

    def _need(self, name: str, work: Callable[[], None]) -> None:
        if name in self._threads:
            return
        with self._mutex:
            if name not in self._threads and not self._closing.is_set():
                thread = threading.Thread(target=work, name=f"perdure-{name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return  # The system gives no thread; this must not end the writer that rang. Polling goes on.
                self._threads[name] = thread

    # -- sending -----------------------------------------------------------------------------

    def _notify(self) -> None:
        connection: Connection | None = None
        while self._due.wait():
            self._due.clear()
            if self._told:
                self._told = False
                try:
                    connection = connection or self._open_notifier()
                    connection.execute("SELECT pg_notify('perdure', %(schema)s)", {"schema": self._schema})
                except psycopg.Error:
                    if connection is not None:
                        connection.close()
                    connection = None
                    if not self._closing.wait(_PAUSE_S):
                        self._told = True  # Once more: whoever listens has lost the server, too, and comes back.
                        self._due.set()
            if self._closing.is_set():
                break
        if connection is not None:
            connection.close()

    def _open_notifier(self) -> Connection:
        connection = self._connect()
        connection.reply_s = _REPLY_S
        connection.autocommit = True
        # A hint that power loss takes is no loss, so its commit need not wait for the disk.
        connection.execute("SET synchronous_commit = off")
        self._notifier_pid = connection.info.backend_pid
        return connection

    # -- hearing -----------------------------------------------------------------------------

    def _hear(self) -> None:
        while not self._closing.is_set():
            try:
                connection = self._connect()
                try:
                    self._hear_on(connection)
                finally:
                    connection.close()
            except psycopg.Error:
                self._closing.wait(_PAUSE_S)  # The server is away; polling goes on without it.

    def _hear_on(self, connection: Connection) -> None:
        """Ring for what other processes tell, until the bell closes. Raises psycopg.Error when the server is gone."""
        connection.autocommit = True
        connection.execute("LISTEN perdure")
        # Nobody heard what was told until now.
        self._listeners.ring()
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while not self._closing.is_set():
                selector.select()
                if any(self._concerns_us(notice) for notice in connection.notifies(timeout=0)):
                    self._listeners.ring()

    def _concerns_us(self, notice: psycopg.Notify) -> bool:
        # A database may hold several schemas of perdure; and our own process has heard it already.
        return notice.payload == self._schema and notice.pid != self._notifier_pid
