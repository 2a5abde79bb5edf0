"""Fixtures that every test may ask for, the profiles of hypothesis, and a time limit for each test.

What only one folder of tests needs stands in that folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings

from tests.postgres import Cluster, NoServer, Server, find_server

TEST_TIMEOUT_S = 120
# Code that swallows the first alarm meets another one.
ALARM_INTERVAL_S = 5

# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture
def tmp_db(tmp_path: Path) -> Path:
    """The path of a database file that does not exist yet, in a folder of its own."""
    return tmp_path / "perdure.db"


@pytest.fixture(scope="session")
def session_postgres() -> Iterator[Server]:
    try:
        server = find_server()
    except NoServer as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI must test with PostgreSQL: {reason}", pytrace=False)
        pytest.skip(str(reason))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def postgres_url(session_postgres: Server) -> Iterator[str]:
    """The address of a fresh and empty PostgreSQL database."""
    url = session_postgres.create_database()
    yield url
    session_postgres.drop_database(url)


@pytest.fixture
def postgres_server(session_postgres: Server) -> Iterator[Cluster]:
    """The server itself, for tests that crash or freeze it; it runs again for the next test.

    A test that needs other settings, fsync for one, makes a Cluster of its own.
    """
    if not isinstance(session_postgres, Cluster):
        pytest.skip("PERDURE_TEST_POSTGRES names a server that is not ours to hurt")
    yield session_postgres
    session_postgres.start()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory where the system has a place for it: a sync costs milliseconds on a disk.

    Whether syncs are made, and what is lost without, is tested by counting and losing them, not by a disk's good luck.
    """
    memory = Path("/dev/shm")
    if config.option.basetemp is None and os.access(memory, os.W_OK | os.X_OK):
        config.option.basetemp = tempfile.mkdtemp(prefix="perdure-tests-", dir=memory)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give the memory back."""
    base = config.option.basetemp
    if base is not None and Path(base).name.startswith("perdure-tests-"):
        shutil.rmtree(base, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for PostgreSQL, so that -m 'not postgres' leaves all of them out."""
    for item in items:
        if "session_postgres" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


# Each phase has its limit: inside one, a failure is reported like any other; between two, it would end the session.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Limit the time of set-up."""
    with _time_limit(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Limit the time of the test itself."""
    with _time_limit(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Limit the time of teardown."""
    with _time_limit(item):
        yield


@contextmanager
def _time_limit(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("slow")
    limit_s = float(marker.kwargs.get("timeout_s", TEST_TIMEOUT_S)) if marker else TEST_TIMEOUT_S
    message = f"took longer than {limit_s:g} s"
    late = False

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        nonlocal late
        late = True
        pytest.fail(message)

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s, ALARM_INTERVAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if late:
        # An event loop swallows what is raised in a callback, and the test went on.
        pytest.fail(message)
