"""A TCP proxy on 127.0.0.1 between a test and its PostgreSQL, which can fall silent, cut, and lose an answer."""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit, urlunsplit

# A reset instead of a goodbye when the socket closes.
_RESET = struct.pack("ii", 1, 0)


class Way(StrEnum):
    """What the proxy does with bytes."""

    OPEN = "open"  # hands them on
    SILENT = "silent"  # takes them and hands on nothing, with every connection open
    LOSE_ANSWER = "lose answer"  # hands on the next COMMIT and cuts both sides when its answer comes


@dataclass(slots=True)
class _Link:
    client: socket.socket
    server: socket.socket
    has_committed: bool = False

    def cut(self) -> None:
        for end in (self.client, self.server):
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # That side is gone already.
            end.close()


class Proxy:
    """Listens while the block runs. `way` may be set at any time."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        assert self._parts.hostname == "127.0.0.1"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: list[_Link] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._is_closing = False
        self.way = Way.OPEN
        self.lost_answers = 0

    @property
    def url(self) -> str:
        """The address of the same database through this proxy."""
        account = self._parts.netloc.rpartition("@")[0]
        port = self._listener.getsockname()[1]
        return urlunsplit(self._parts._replace(netloc=f"{account}@127.0.0.1:{port}"))

    def cut(self) -> None:
        """Reset every connection that is open now."""
        for link in self._links:
            link.cut()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._parts.port or 5432))
            except OSError:
                client.close()
                continue
            link = _Link(client, server)
            self._links.append(link)
            for work in (self._hand_up, self._hand_down):
                thread = threading.Thread(target=work, args=(link,), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _hand_up(self, link: _Link) -> None:
        try:
            while data := link.client.recv(65_536):
                if self.way is Way.SILENT:
                    continue
                # With the end of the text: a transaction also begins with READ COMMITTED.
                link.has_committed = link.has_committed or (self.way is Way.LOSE_ANSWER and b"COMMIT\0" in data)
                link.server.sendall(data)
        except OSError:
            pass  # One side is gone, so the other goes, too.
        link.cut()

    def _hand_down(self, link: _Link) -> None:
        try:
            while data := link.server.recv(65_536):
                if self.way is Way.SILENT:
                    continue
                if link.has_committed:
                    self.lost_answers += 1
                    self.way = Way.OPEN
                    break
                link.client.sendall(data)
        except OSError:
            pass  # One side is gone, so the other goes, too.
        link.cut()
