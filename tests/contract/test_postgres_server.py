"""The server that the tests use does to a database what they think it does."""

from __future__ import annotations

import psycopg
import pytest

from tests.postgres import Cluster, Server, find_binaries


def _fill(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE words (word TEXT)")
        connection.execute("INSERT INTO words VALUES ('kept')")


def _words(url: str) -> list[tuple[str]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT word FROM words").fetchall()


def test_a_database_is_fresh_and_a_template_is_copied(postgres_url: str, session_postgres: Server) -> None:
    _fill(postgres_url)

    empty = session_postgres.create_database()
    copy = session_postgres.create_database(template=postgres_url.rpartition("/")[2])

    assert _words(copy) == [("kept",)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        _words(empty)
    session_postgres.drop_database(empty)
    session_postgres.drop_database(copy)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(copy)


def test_what_was_committed_survives_a_crash(postgres_url: str, postgres_server: Cluster) -> None:
    _fill(postgres_url)

    postgres_server.crash()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres_url)
    postgres_server.start()

    assert _words(postgres_url) == [("kept",)]


def test_a_test_may_leave_the_server_down(postgres_url: str, postgres_server: Cluster) -> None:
    postgres_server.crash()

    assert not postgres_server.is_running()


def test_the_server_is_up_again_for_the_next_test(postgres_server: Cluster) -> None:
    assert postgres_server.is_running()


def test_a_killed_connection_is_an_error_and_a_new_one_works(postgres_url: str, postgres_server: Cluster) -> None:
    connection = psycopg.connect(postgres_url)

    assert postgres_server.kill_backends() >= 1

    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    _fill(postgres_url)


def test_a_frozen_server_answers_nothing_until_it_thaws(postgres_url: str, postgres_server: Cluster) -> None:
    _fill(postgres_url)
    connection = psycopg.connect(postgres_url, autocommit=True)

    with postgres_server.frozen():
        connection.pgconn.send_query(b"SELECT count(*) FROM words")
        connection.pgconn.flush()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(postgres_url, connect_timeout=2)
        connection.pgconn.consume_input()
        assert connection.pgconn.is_busy()

    answer = connection.pgconn.get_result()
    assert answer is not None
    assert answer.get_value(0, 0) == b"1"
    connection.close()


@pytest.mark.parametrize("fsync", ["on", "off"])
def test_a_cluster_of_bundled_binaries_takes_its_settings(fsync: str) -> None:
    with (
        Cluster(find_binaries(bundled=True), fsync=fsync == "on", settings="work_mem = '5MB'") as cluster,
        psycopg.connect(cluster.url) as connection,
    ):
        assert connection.execute("SHOW fsync").fetchall() == [(fsync,)]
        assert connection.execute("SHOW work_mem").fetchall() == [("5MB",)]
        assert connection.execute("SHOW listen_addresses").fetchall() == [("127.0.0.1",)]
