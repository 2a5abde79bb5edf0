"""Where an app and its database are named: by flag, else environment, else pyproject.toml."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.errors import BadInput
from perdure.settings import Settings

DEFAULT_DATABASE = "perdure.db"


def database_url(given: str | None = None) -> str:
    """`given`, else $PERDURE_DB, else `db` in [tool.perdure], else perdure.db in the present folder."""
    return given or named_database() or DEFAULT_DATABASE


def named_database() -> str | None:
    """$PERDURE_DB, else `db` in [tool.perdure], else None."""
    return os.environ.get("PERDURE_DB") or str(_table().get("db") or "") or None


def flags_for(url: str) -> str:
    """What to add to a command so that it finds the database at `url`: nothing where it is found anyhow.

    A password is left out; the driver then takes it from where it finds passwords.
    """
    if (named_database() is None and app_name() is not None) or _place(database_url()) == _place(url):
        return ""
    return f" --db {shlex.quote(_without_password(url))}"


def app_name(given: str | None = None) -> str | None:
    """`given`, else $PERDURE_APP, else `app` in [tool.perdure], else None. The form is module:attribute."""
    return given or os.environ.get("PERDURE_APP") or _table().get("app")


def settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """The defaults, with [tool.perdure.settings], then $PERDURE_NAME, then `overrides` on top."""
    found = Settings().override(_table().get("settings", {}))
    env = {name: value for name in found.__slots__ if (value := os.environ.get(f"PERDURE_{name.upper()}"))}
    return found.override(env).override(overrides or {})


def _without_password(url: str) -> str:
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
    path = Path("pyproject.toml")
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("perdure", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"pyproject.toml cannot be read: {error}", field="pyproject.toml") from error
    return found if isinstance(found, dict) else {}
