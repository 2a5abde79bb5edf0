"""Tells waiting workers that a commit may concern them: at once in this process, by datagram in others.

A hint can be lost and says nothing but "look": the tables are the truth and everybody also polls. Each listening
process binds a socket in a folder that belongs to the database; a sender writes one byte to each.

The folder has a predictable name in a place where everybody may write. Nothing is read, written or deleted there
unless the folder is ours alone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from perdure.store.filesystem import is_private, make_private


class Listeners:
    """Who wants to be told in this process."""

    def __init__(self) -> None:
        self._wakes: dict[object, Callable[[], None]] = {}

    def add(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Ring `wake` from now on; returns how to stop."""
        token = object()
        self._wakes[token] = wake
        return lambda: self._remove(token)

    def ring(self) -> None:
        """Call everybody."""
        for token, wake in list(self._wakes.items()):
            try:
                wake()
            except RuntimeError:  # Its event loop is closed: nobody waits there any more.
                self._remove(token)

    def clear(self) -> None:
        """Forget everybody."""
        self._wakes.clear()

    def _remove(self, token: object) -> None:
        self._wakes.pop(token, None)


class Wakeup:
    """The bell of one database in this process. `path` is None for a database in memory."""

    def __init__(self, path: Path | None) -> None:
        self._folder = _folder(path) if path is not None else None
        self._listeners = Listeners()
        self._socket: socket.socket | None = None
        self._bound: Path | None = None
        self._mutex = threading.Lock()
        self._sender: socket.socket | None = None
        self._closed = False

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each hint, from whatever thread; returns how to stop."""
        stop = self._listeners.add(wake)
        with self._mutex:
            if self._folder is not None and self._socket is None and not self._closed:
                self._bind()
        return stop

    def tell(self) -> None:
        """Ring here and in every other process that listens."""
        self._listeners.ring()
        if self._folder is None or not (is_private(self._folder.parent) and is_private(self._folder)):
            return  # Nobody has ever listened, or the name leads to where somebody else wants us.
        try:
            if self._sender is None:
                self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sender.setblocking(False)
            for name in os.listdir(self._folder):
                if self._folder / name != self._bound:
                    self._send(self._sender, self._folder / name)
        except OSError:
            return  # The system gives no socket, or the folder went meanwhile: polling finds everything.

    def close(self) -> None:
        """Stop listening."""
        with self._mutex:
            self._closed = True
            self._listeners.clear()
            if self._bound is not None:
                self._bound.unlink(missing_ok=True)
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
                self._socket.close()
            if self._sender is not None:
                self._sender.close()

    def _send(self, sender: socket.socket, other: Path) -> None:
        try:
            sender.sendto(b"1", str(other))
        except BlockingIOError:
            return  # Its buffer is full: it has hints enough.
        except (ConnectionRefusedError, FileNotFoundError):
            _delete_socket(other)  # Its process is gone.

    def _bind(self) -> None:
        assert self._folder is not None
        bound = self._folder / secrets.token_hex(4)
        try:
            make_private(self._folder.parent)
            make_private(self._folder)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return  # No place for sockets: polling alone finds everything.
        try:
            listener.bind(str(bound))
        except OSError:
            listener.close()  # Its path is too long, for one.
            return
        self._socket, self._bound = listener, bound
        threading.Thread(target=self._receive, args=(listener,), name="perdure-wake", daemon=True).start()

    def _receive(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                if not listener.recv(16):
                    return
            except OSError:
                return
            self._listeners.ring()


def _delete_socket(path: Path) -> None:
    """Delete what nobody listens at. A plain file refuses a connection too, and is none of ours."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            path.unlink()


def _folder(path: Path) -> Path:
    # A socket's path must be shorter than about 100 bytes, so it cannot lie beside a deep database file.
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"perdure-{os.geteuid()}" / name
