"""Finds what a command works on: the app by its name, the database by flag, app, environment or pyproject.toml."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from perdure import config
from perdure.app import App
from perdure.cli import screen
from perdure.client import Client
from perdure.commands import Commands
from perdure.definitions import AgentDefinition, ToolDefinition, definition_of
from perdure.errors import BadInput, PerdureError, StoreError
from perdure.store import sqlite_path

_NOT_THEIRS: Final = (
    f"{Path(__file__).resolve().parent.parent}{os.sep}",
    f"{Path(importlib.__file__).parent}{os.sep}",
    "<",  # what Python made or froze: importlib, the methods of a dataclass
)


@contextmanager
def opened(db: str | None, app_name: str | None = None) -> Iterator[Client]:
    """A client on the database that the command means, for commands that look or answer.

    Raises StoreError when it is not there: looking must not make an empty one.
    """
    url = _url(db, app_name)
    _need_database(url)
    client = _Looking(url, commands(url, db, app_name))
    with client.store:
        try:
            yield client
        except PerdureError as error:
            # The store, which found the error, knows nothing of the flags by which a command finds it.
            error.args = (client.commands.made_whole(str(error)), *error.args[1:])
            raise


def _need_database(url: str) -> None:
    path = sqlite_path(url)
    if path is None:
        return
    hint = "name one with --db, or the app with --app MODULE:APP"
    if not path.exists():
        raise StoreError(f"there is no database at {path.absolute()}; {hint}")
    # A backup that was restored to nothing, say: SQLite would make a new one of it, and throw away a log beside it.
    if path.stat().st_size == 0:
        raise StoreError(f"the file {path.absolute()} is empty, and so no database; restore it, or {hint}")


class _Looking(Client):
    """A client whose commands name what the flags of the present one have named."""

    def __init__(self, url: str, shown: Commands) -> None:
        super().__init__(url)
        self._shown = shown

    @property
    def commands(self) -> Commands:
        return self._shown


def commands(url: str, db: str | None, app_name: str | None) -> Commands:
    """The commands to show beside one with these flags, which must find the same database and app."""
    known = config.app_name()
    shown = config.commands_for(url)
    if db is not None or (app_name is not None and known not in (None, app_name)):
        shown = replace(shown, flags=config.db_flag(url))
    return shown if app_name in (None, known) else replace(shown, app=app_name)


@contextmanager
def made(db: str | None, app_name: str | None = None) -> Iterator[Client]:
    """The same for commands that may make the database, which they do when they first ask for its store."""
    url = _url(db, app_name)
    _need_folder(url)
    client = Client(url)
    try:
        yield client
    finally:
        asyncio.run(client.aclose())


def load_app(name: str | None, db: str | None) -> App:
    """The app that is named by flag, environment or pyproject.toml. Raises BadInput when none is, or it is no app."""
    name = config.app_name(name)
    if name is None:
        ways = "--app MODULE:APP, $PERDURE_APP, or app in [tool.perdure]"
        raise BadInput(f"name the app: {ways}", field="app")
    return _at(_app(name), db)


def load_agent(target: str, app_name: str | None, db: str | None) -> tuple[App, AgentDefinition]:
    """An agent and the app that runs it, from MODULE:AGENT, MODULE:APP with one agent, or a name in the known app."""
    if ":" not in target:
        known = load_app(app_name, db)
        return known, _agent_of(known, target, config.app_name(app_name) or "the app")
    found = load(target)
    itself = _as_app(found)
    if itself is not None:
        return _at(itself, db), _only_agent(itself, target)
    agent = definition_of(found)
    if not isinstance(agent, AgentDefinition):
        raise BadInput(f"{target} is {_kind(found)}, not an agent; decorate it with @perdure.agent", field="agent")
    app = load_app(app_name, db) if app_name is not None else _app_beside(target, agent, found, db)
    return app, _agent_of(app, agent.name, app_name or f"the app of {target}")


def load(name: str) -> Any:
    """The object that MODULE:ATTRIBUTE names; the present folder and the project's come first. Raises BadInput."""
    module_name, (_, colon, path) = _module_name(name), name.partition(":")
    if not (colon and module_name and path):
        raise BadInput(f"{name!r} is no MODULE:NAME, such as app:app", field="app")
    found: Any = _import(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise BadInput(f"{module_name} has no {path}", field="app")
        found = getattr(found, part)
    return found


def _url(db: str | None, app_name: str | None) -> str:
    """Where the database lies, in the order of all commands: the flag, the app's own, the environment, pyproject.toml.

    An app that cannot be imported keeps nobody from looking where the database is named otherwise.
    """
    if db is not None:
        return db
    name = config.app_name(app_name)
    if name is None:
        return config.database_url()
    try:
        return _app(name).url
    except BadInput as error:
        named = config.named_database()
        if app_name is not None or named is None:
            raise
        screen.note(f"{error}; this is {config.shown(named)}, as $PERDURE_DB or [tool.perdure] names it")
        return named


def _need_folder(url: str) -> None:
    """Refuse a path whose folder is not there: a slip in it would make a second, empty database. Raises BadInput."""
    path = sqlite_path(url)
    if path is not None and not path.absolute().parent.is_dir():
        where = path.absolute().parent
        raise BadInput(f"there is no folder {where} for {path.name}; make it first, or name another place", field="db")


def _module_name(target: str) -> str:
    return target.partition(":")[0].removesuffix(".py").replace("/", ".")


def _import(name: str) -> Any:
    here = os.getcwd()
    for folder in (config.project_folder(), here):
        if folder is not None and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadInput(f"there is no module {name} in {here} or on Python's path", field="app") from None
        raise BadInput(f"{name} cannot be imported: {error}{_place(error)}", field="app") from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise BadInput(f"{name} cannot be imported: {said}{_place(error)}", field="app") from error


def _place(error: BaseException) -> str:
    """Where in the user's own code an import failed: not in perdure, which refused it, nor in Python's import."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(_NOT_THEIRS)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _app_beside(target: str, agent: AgentDefinition, found: Any, db: str | None) -> App:
    """The app in the agent's module that has it; where there is none, an app of all agents there."""
    module = sys.modules[_module_name(target)]
    values = list(vars(module).values())
    apps = {id(app): app for one in values if (app := _as_app(one)) is not None and agent in app.agents.values()}
    if len(apps) > 1:
        raise BadInput(f"several apps in {module.__name__} have {agent.name}; name one with --app", field="app")
    if apps:
        return _at(next(iter(apps.values())), db)
    functions: list[Any] = [one for one in values if inspect.isfunction(one)]
    agents = [one for one in functions if isinstance(definition_of(one), AgentDefinition)]
    return _at(App(db, agents=agents or [found]), db)


def _agent_of(app: App, name: str, where: str) -> AgentDefinition:
    """The version of an agent that was declared last."""
    found = [one for (known, _), one in app.agents.items() if known == name]
    if not found:
        names = sorted({known for known, _ in app.agents})
        near = get_close_matches(name, names, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise BadInput(f"{where} has no agent {name}; it has {', '.join(names)}{meant}", field="agent")
    return found[-1]


def _only_agent(app: App, target: str) -> AgentDefinition:
    names = sorted({known for known, _ in app.agents})
    if len(names) != 1:
        each = ", ".join(f"{target.partition(':')[0]}:{name}" for name in names)
        raise BadInput(f"{target} has several agents; name one: {each}", field="agent")
    return _agent_of(app, names[0], target)


def _app(name: str) -> App:
    found = load(name)
    app = _as_app(found)
    if app is None:
        raise BadInput(f"{name} is {_kind(found)}, not a perdure.App", field="app")
    return app


def _at(app: App, db: str | None) -> App:
    if db is not None:
        app.use(db)
    if app.url in (db, config.named_database()):
        _need_folder(app.url)
    return app


def _as_app(found: object) -> App | None:
    # The blocking App of perdure.sync drives one of these, which is the one to run here.
    twin = found if isinstance(found, App) else vars(found).get("_twin") if hasattr(found, "__dict__") else None
    return twin if isinstance(twin, App) else None


def _kind(value: object) -> str:
    match definition_of(value):
        case ToolDefinition():
            return "a tool"
        case AgentDefinition():
            return "an agent"
        case _:
            return f"of type {type(value).__name__}"
