"""Where an app and its database are named: by flag, else environment, else pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.errors import BadInput
from perdure.settings import Settings

DEFAULT_DATABASE = "perdure.db"


def database_url(given: str | None = None) -> str:
    """`given`, else $PERDURE_DB, else `db` in [tool.perdure], else perdure.db in the present folder."""
    return given or os.environ.get("PERDURE_DB") or str(_table().get("db") or DEFAULT_DATABASE)


def app_name(given: str | None = None) -> str | None:
    """`given`, else $PERDURE_APP, else `app` in [tool.perdure], else None. The form is module:attribute."""
    return given or os.environ.get("PERDURE_APP") or _table().get("app")


def settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """The defaults, with [tool.perdure.settings], then $PERDURE_NAME, then `overrides` on top."""
    found = Settings().override(_table().get("settings", {}))
    env = {name: value for name in found.__slots__ if (value := os.environ.get(f"PERDURE_{name.upper()}"))}
    return found.override(env).override(overrides or {})


def _table() -> Mapping[str, Any]:
    path = Path("pyproject.toml")
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("perdure", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"pyproject.toml cannot be read: {error}", field="pyproject.toml") from error
    return found if isinstance(found, dict) else {}
