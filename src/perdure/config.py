"""Where an app and its database are named: by flag, else environment, else pyproject.toml, here or further up."""

from __future__ import annotations

import difflib
import logging
import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.commands import Commands
from perdure.errors import BadInput
from perdure.settings import Settings

log = logging.getLogger(__name__)

DEFAULT_DATABASE = "perdure.db"
_NAMES: Final = ("app", "db", "settings")
_told: set[str] = set()


def database_url(given: str | None = None) -> str:
    """`given`, else $PERDURE_DB, else `db` in [tool.perdure], else perdure.db in the present folder."""
    return given or named_database() or DEFAULT_DATABASE


def named_database() -> str | None:
    """$PERDURE_DB, else `db` in [tool.perdure], else None. A path in a file is one from the file's folder."""
    if named := os.environ.get("PERDURE_DB"):
        return named
    table = _table()
    url = str(table.get("db") or "")
    if not url or not _is_path(url) or table["folder"] == Path.cwd():
        return url or None
    return str(table["folder"] / url.removeprefix("sqlite:///"))


def commands_for(url: str) -> Commands:
    """The commands that are shown for the database at `url`, when no flag has named it or the app."""
    return Commands(flags_for(url), "" if app_name() is not None else Commands().app)


def flags_for(url: str) -> str:
    """What to add to a command so that it finds the database at `url`: nothing where it is found anyhow.

    A password is left out; the driver then takes it from where it finds passwords.
    """
    if (named_database() is None and app_name() is not None) or _place(database_url()) == _place(url):
        return ""
    return db_flag(url)


def db_flag(url: str) -> str:
    """The flag that names this database to a command, without a password."""
    return f" --db {shlex.quote(shown(url))}"


def app_name(given: str | None = None) -> str | None:
    """`given`, else $PERDURE_APP, else `app` in [tool.perdure], else None. The form is module:attribute."""
    return given or os.environ.get("PERDURE_APP") or _table().get("app")


def project_folder() -> Path | None:
    """Where the pyproject.toml lies whose [tool.perdure] counts here, or None."""
    return _table().get("folder")


def settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """The defaults, with [tool.perdure.settings], then $PERDURE_NAME, then `overrides` on top."""
    found = Settings().override(_table().get("settings", {}))
    _warn_of_slips(found.__slots__)
    env = {name: value for name in found.__slots__ if (value := os.environ.get(f"PERDURE_{name.upper()}"))}
    return found.override(env).override(overrides or {})


def shown(url: str) -> str:
    """A database's address without its password."""
    if _is_path(url):
        return url
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query) if "password" not in name.lower()]
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + place, query=urlencode(query)))


def _is_path(url: str) -> bool:
    return "://" not in url or url.startswith("sqlite:///")


def _place(url: str) -> str:
    return os.path.abspath(url.removeprefix("sqlite:///")) if _is_path(url) else url


def _table() -> Mapping[str, Any]:
    """What [tool.perdure] says in the nearest pyproject.toml that has one. Raises BadInput for what it cannot say."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        path = folder / "pyproject.toml"
        if path.is_file() and (found := _read_table(path)) is not None:
            return {**found, "folder": folder}
    return {}


def _read_table(path: Path) -> Mapping[str, Any] | None:
    try:
        tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", field="pyproject.toml") from error
    found = tools.get("perdure") if isinstance(tools, dict) else None
    if not isinstance(found, dict):
        return None
    for name in found:
        if name not in _NAMES:
            known = f"known are {', '.join(_NAMES)}"
            raise BadInput(f"[tool.perdure] in {path} has {name!r}: {known}{_meant(name, _NAMES)}", field=name)
    return found


def _warn_of_slips(names: Sequence[str]) -> None:
    """Log variables that are nearly settings. What else begins with PERDURE_ may be somebody else's."""
    known = [f"PERDURE_{name.upper()}" for name in names]
    for variable in sorted(os.environ):
        if variable.startswith("PERDURE_") and variable not in (*known, "PERDURE_DB", "PERDURE_APP"):
            meant = _meant(variable, known)
            if meant and variable not in _told:
                _told.add(variable)
                log.warning("%s is no setting and is ignored%s", variable, meant)


def _meant(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8 if len(name) > 4 else 0.5)
    return f"; did you mean {close[0]}?" if close else ""
