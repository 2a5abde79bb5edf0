"""Where app, database and settings are named, and what a command must say to find them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Client, config
from perdure.errors import BadInput


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that says nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("PERDURE_DB", "PERDURE_APP", "PERDURE_LEASE_S"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


def test_the_database_is_named_by_flag_environment_and_file_in_this_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config.database_url() == "perdure.db"
    write(folder, '[tool.perdure]\ndb = "toml.db"')
    assert config.database_url() == "toml.db"
    monkeypatch.setenv("PERDURE_DB", "env.db")
    assert config.database_url() == "env.db"
    assert config.database_url("flag.db") == "flag.db"


def test_settings_come_from_file_environment_and_overrides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "[tool.perdure.settings]\nlease_s = 40\npermits = 8")
    monkeypatch.setenv("PERDURE_LEASE_S", "50")

    found = config.settings({"permits": 9})

    assert (found.lease_s, found.permits) == (50, 9)


def test_a_broken_pyproject_is_refused(folder: Path) -> None:
    write(folder, "[tool.perdure")

    with pytest.raises(BadInput, match=r"pyproject\.toml cannot be read"):
        config.database_url()


def test_a_slip_in_pyproject_is_refused_with_what_was_meant(folder: Path) -> None:
    write(folder, '[tool.perdure]\naap = "shop:app"')

    with pytest.raises(BadInput, match=r"has 'aap': known are app, db, settings; did you mean app\?"):
        config.app_name()


def test_a_slip_in_the_environment_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PERDURE_LEESE_S", "3")
    monkeypatch.setenv("PERDURE_COLOUR", "red")

    config.settings()

    assert caplog.messages == ["PERDURE_LEESE_S is no setting and is ignored; did you mean PERDURE_LEASE_S?"]


def test_a_command_needs_no_flag_where_the_database_is_found_anyhow(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config.flags_for("perdure.db") == ""
    assert config.flags_for(f"sqlite:///{folder}/perdure.db") == ""
    monkeypatch.setenv("PERDURE_DB", "other.db")
    assert config.flags_for("other.db") == ""
    assert config.flags_for("perdure.db") == " --db perdure.db"


def test_a_command_needs_the_flag_elsewhere_quoted_for_a_shell() -> None:
    assert config.flags_for("my agents.db") == " --db 'my agents.db'"


def test_the_app_names_its_own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_APP", "app:app")

    assert config.flags_for("agents.db") == ""


def test_a_password_is_never_shown() -> None:
    flags = config.flags_for("postgresql://ana:s3cret@db:5432/agents?sslpassword=alsos3cret&sslmode=require")

    assert flags == " --db 'postgresql://ana@db:5432/agents?sslmode=require'"


def test_another_database_or_setting_is_taken_only_before_the_first_use(folder: Path) -> None:
    client = Client("one.db")
    client.use("two.db", settings={"permits": 3})
    with client.store:
        assert (folder / "two.db").exists()
        assert client.store.settings.permits == 3

        with pytest.raises(BadInput, match="is open already"):
            client.use("three.db")
