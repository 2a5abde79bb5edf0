"""The command line's manners: one line for an error, the exit code by its kind, plain output where no terminal is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.cli.main import exit_code
from perdure.errors import (
    BadInput,
    KeyConflict,
    NotFound,
    PerdureError,
    Refused,
    SchemaTooNew,
    StoreBusy,
    StoreError,
)
from tests.command_line import SOURCE, Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PerdureError("x"), 1),
        (Refused("x"), 1),
        (BadInput("x"), 2),
        (KeyConflict("x", key="k"), 2),
        (NotFound("x"), 3),
        (StoreError("x"), 4),
        (StoreBusy("x"), 4),
        (SchemaTooNew("x"), 4),
    ],
)
def test_the_exit_code_tells_the_kind_of_error(error: PerdureError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nonsense"], 2, "No such command"),
        (["ps", "--nonsense"], 2, "No such option"),
        (["why"], 2, "Missing"),
        (["ps", "--limit", "many"], 2, "Invalid value for '--limit'"),
        (["ps", "--after", "x"], 2, "is no cursor"),
        (["why", "UUU"], 3, "no task's id ends in UUU"),
        (["answer", "Q9", "x"], 3, "there is no question Q9"),
        (["run", "nobody"], 2, "has no agent nobody"),
        (["run", "missing_module:agent"], 2, "there is no module missing_module"),
        (["run", "x:"], 2, "is no MODULE:NAME"),
        (["run", "failing"], 2, "missing a required argument"),
        (["run", "failing", "-5", "-x"], 2, "No such option: -x; write -- before an argument that begins with a dash"),
        (["answer", "Q9", "-5", "--becuase", "x"], 2, "No such option: --becuase (Possible options: --because); write"),
        (["answer", "Q9", "-5h"], 2, "No such option: -5; write -- before an argument that begins with a dash"),
        (["settle", "T", "-1", "--give-up"], 2, "Invalid value for 'STEP': Input should be greater"),
        (["ps", "-5"], 2, "Got unexpected extra argument(s) (-5)"),
        (["run", "writer", "x", "--key", "k", "--new"], 2, "give one of them"),
        (["worker", "a:b", "--app", "a:b"], 2, "named twice"),
        (["ps", "--db", "no/such.db"], 4, "/no/such.db; name one with --db"),
        (["ps", "--db", "mysql://x"], 2, "names no database"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(desk: Desk, words: list[str], code: int, says: str) -> None:
    desk.run("run", "writer", "x")

    said = desk.run(*words)

    assert (said.code, said.out) == (code, "")
    assert says in said.err
    assert said.err.startswith("perdure: ")
    assert len(said.err.splitlines()) == 1


def test_looking_never_makes_a_database(desk: Desk) -> None:
    said = desk.run("ps")

    assert said.code == 4
    assert f"there is no database at {desk.db}; name one with --db" in said.err
    assert not desk.db.exists()


@pytest.mark.parametrize("words", [["ps"], ["doctor"], ["questions"], ["why", "T"], ["approve", "Q1"]])
def test_a_database_that_was_restored_to_nothing_is_said_to_be_empty_and_left_so(desk: Desk, words: list[str]) -> None:
    desk.db.touch()

    said = desk.run(*words)

    assert (said.code, said.out) == (4, "")
    assert f"the file {desk.db} is empty, and so no database; restore it, or name one with --db" in said.err
    assert desk.db.stat().st_size == 0
    assert [one.name for one in desk.folder.glob(f"{desk.db.name}*")] == [desk.db.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize(
    "words",
    [
        ["ps", "--all"],
        ["ps", "--json"],
        ["doctor"],
        ["--help"],
        ["run", "talker", "ann", "--json"],
        ["run", "talker", "ann"],
    ],
)
def test_output_that_has_no_room_is_one_line_without_a_traceback(desk: Desk, words: list[str]) -> None:
    desk.run("run", "writer", "x")

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perdure.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            check=False,
        )

    assert (done.returncode, done.stderr) == (1, "perdure: cannot print: No space left on device\n")


def test_a_file_that_is_no_database_is_left_alone(desk: Desk) -> None:
    desk.db.write_text("these are notes, not a database" * 100)

    said = desk.run("ps")

    assert said.code == 4
    assert "left unchanged" in said.err
    assert desk.db.read_text().startswith("these are notes")


def test_a_server_that_is_not_there_is_unreachable(desk: Desk) -> None:
    said = desk.run("ps", "--db", "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")

    assert said.code == 4
    assert len(said.err.splitlines()) == 1


def test_the_same_commands_work_on_postgres(desk: Desk, postgres_url: str) -> None:
    on = ("--db", postgres_url)
    asks = desk.run("run", "support", "o-7", *on)

    assert asks.code == 1
    assert "waits for support: " in asks.err
    assert "because question Q1 is open: " in desk.run("ps", *on).out
    assert desk.run("answer", "Q1", "no", *on).code == 0
    assert desk.run("run", "support", "o-7", *on).out == "not entitled\n"
    assert desk.run("doctor", *on).out.splitlines()[-1] == "all is well"


def test_an_error_in_the_users_module_names_its_place(desk: Desk) -> None:
    (desk.folder / "broken.py").write_text("import perdure\n\nraise RuntimeError('no config')\n")

    said = desk.run("run", "broken:agent")

    assert said.code == 2
    assert "broken cannot be imported: RuntimeError: no config" in said.err
    assert f"{desk.folder / 'broken.py'}:3" in said.err


def test_a_refused_decorator_is_found_in_the_users_module_and_not_in_perdure(desk: Desk) -> None:
    (desk.folder / "broken.py").write_text("import perdure\n\n@perdure.tool(risk='hihg')\nasync def f(): ...\n")
    (desk.folder / "spent.py").write_text("import perdure\n\nbudget = perdure.Budget(tokens=-3)\n")

    (desk.folder / "amiss.py").write_text("import perdure\n\n@perdure.tool(approve=lambda: True)\ndef f(a): ...\n")

    assert desk.run("run", "spent:agent").err.endswith(f"({desk.folder / 'spent.py'}:3)\n")
    assert desk.run("run", "amiss:agent").err.endswith(f"({desk.folder / 'amiss.py'}:3)\n")
    for words in (["run", "broken:agent"], ["ps", "--app", "broken:app"], ["worker", "broken:app"]):
        said = desk.run(*words)
        assert said.code == 2
        assert said.err.endswith(f"({desk.folder / 'broken.py'}:3)\n")


def test_what_is_no_agent_is_named_for_what_it_is(desk: Desk) -> None:
    assert "is a tool, not an agent" in desk.run("run", f"{desk.module}:search").err
    assert "is of type module, not an agent" in desk.run("run", f"{desk.module}:os").err
    assert f"name one: {desk.module}:careful, " in desk.run("run", f"{desk.module}:app").err
    assert "writer is an agent, not a perdure.App" in desk.run("worker", f"{desk.module}:writer").err
    assert "not a perdure.App" in desk.run("ps", "--app", f"{desk.module}:search").err


def test_the_app_may_name_the_database(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (desk.folder / f"{desk.module}.py").read_text().replace("perdure.App(", 'perdure.App("own.db", ')
    (desk.folder / f"{desk.module}x.py").write_text(text)
    monkeypatch.delenv("PERDURE_DB")
    monkeypatch.setenv("PERDURE_APP", f"{desk.module}x:app")

    assert desk.run("run", "support", "o-7").code == 1

    assert (desk.folder / "own.db").exists()
    assert len(desk.run("questions", "--json").json["questions"]) == 1
    monkeypatch.delenv("PERDURE_APP")
    asked = desk.run("run", f"{desk.module}x:support", "o-7")
    assert "    perdure answer Q1 VALUE --db own.db\n" in asked.err
    assert desk.run("answer", "Q1", "--db", "own.db", "yes").code == 0


@pytest.mark.parametrize("named_by", ["environment", "flag", "pyproject.toml"])
def test_the_apps_own_database_counts_before_the_environment_for_every_command(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    text = (desk.folder / f"{desk.module}.py").read_text().replace("perdure.App(", 'perdure.App("own.db", ')
    (desk.folder / f"{desk.module}x.py").write_text(text)
    app = f"{desk.module}x:app"
    flag = ["--app", app] if named_by == "flag" else []
    monkeypatch.delenv("PERDURE_APP")
    if named_by == "environment":
        monkeypatch.setenv("PERDURE_APP", app)
    elif named_by == "pyproject.toml":
        (desk.folder / "pyproject.toml").write_text(f'[tool.perdure]\napp = "{app}"\n')

    assert desk.run("run", "writer", "x", *flag).out == "X\n"

    assert desk.run("ps", "--all", *flag).out.count("writer") == 1
    assert not desk.db.exists()
    desk.run("run", f"{desk.module}:writer", "y", "--db", str(desk.db))
    assert desk.run("ps", "--all", *flag, "--db", str(desk.db)).out.count("writer") == 1


def test_an_app_that_cannot_be_imported_keeps_nobody_from_looking(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.run("run", "writer", "x")
    monkeypatch.setenv("PERDURE_APP", "gone:app")

    looked = desk.run("ps", "--all")

    assert (looked.code, looked.out.count("writer")) == (0, 1)
    assert looked.err.startswith("there is no module gone")
    assert desk.run("ps", "--app", "gone:app").code == 2


@pytest.mark.parametrize("words", [("run", "writer", "x"), ("worker",), ("ps",)])
def test_a_database_in_a_folder_that_is_not_there_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    by_flag = desk.run(*words, "--db", "slip/x.db")
    monkeypatch.setenv("PERDURE_DB", "slip/x.db")
    by_name = desk.run(*words)

    assert {by_flag.code, by_name.code} <= {2, 4}
    for said in (by_flag, by_name):
        assert said.err.startswith("perdure: there is no ") and str(desk.folder / "slip") in said.err
    assert not (desk.folder / "slip").exists()


def test_app_and_database_may_stand_in_pyproject(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_DB")
    monkeypatch.delenv("PERDURE_APP")
    (desk.folder / "pyproject.toml").write_text(f'[tool.perdure]\napp = "{desk.module}:app"\ndb = "from-toml.db"\n')

    assert desk.run("run", "writer", "x").out == "X\n"
    assert (desk.folder / "from-toml.db").exists()
    assert desk.run("ps", "--all").out.count("writer") == 1


def test_pyproject_counts_in_the_folders_below_it_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_DB")
    monkeypatch.delenv("PERDURE_APP")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(desk.folder)])
    (desk.folder / "pyproject.toml").write_text(f'[tool.perdure]\napp = "{desk.module}:app"\ndb = "own.db"\n')
    (desk.folder / "below").mkdir()
    monkeypatch.chdir(desk.folder / "below")

    assert desk.run("run", "writer", "x").out == "X\n"
    assert (desk.folder / "own.db").exists()
    assert desk.run("ps", "--all").out.count("writer") == 1
    assert desk.run_apart("ps", "--all", PERDURE_DB="", PERDURE_APP="").out.count("writer") == 1


def test_without_a_terminal_output_is_plain(desk: Desk) -> None:
    desk.run("run", "support", "o-7")

    said = desk.run_apart("ps", NO_COLOR="", FORCE_COLOR="", COLUMNS="40")

    assert said.code == 0
    assert re.fullmatch(r"[\x20-\x7e…\n]+", said.out)
    assert "Is the customer of o-7 entitled?  (to support)" in said.out.splitlines()[1]


def test_a_terminal_has_colour_and_no_color_takes_it_away(desk: Desk) -> None:
    desk.run("run", "waiting", "paid", "--timeout", "0.1")
    desk.run("run", "failing", "1")

    coloured = desk.on_terminal("ps", "--all", NO_COLOR="")
    plain = desk.on_terminal("ps", "--all", NO_COLOR="1")

    assert "\x1b[31mfailed\x1b[0m" in coloured
    assert "\x1b[31m" not in plain
    assert "boom 1" in plain


def test_nothing_is_cut_to_the_width_of_a_terminal(desk: Desk) -> None:
    desk.run("run", "support", "o-7 " + "x" * 100)

    lines = desk.on_terminal("ps", NO_COLOR="1").replace("\r", "").splitlines()

    assert len(lines) == 2
    assert lines[1].endswith("entitled?  (to support)")


def test_perdure_alone_prints_its_help_as_a_page(desk: Desk) -> None:
    said = desk.run()

    assert (said.code, said.out) == (2, "")
    assert said.err == desk.run("--help").out


def test_the_version_is_told_by_the_command_and_the_package(desk: Desk) -> None:
    assert desk.run("--version").out == f"perdure {perdure.__version__}\n"


def test_help_is_plain_and_names_every_command(desk: Desk) -> None:
    said = desk.run("--help")

    assert said.code == 0
    names = ["run", "worker", "ps", "show", "why", "questions", "effects", "approve", "deny", "answer", "cancel",
             "resume", "import", "doctor", "demo"]  # fmt: skip
    for name in names:
        assert re.search(rf"^  {name} +\S", said.out, flags=re.MULTILINE), name
        assert desk.run(name, "--help").code == 0
    assert "..." not in said.out.replace("[ARGS]...", "")
    assert not re.search("[╭─│]", said.out)


def test_a_reader_that_has_seen_enough_is_no_error(desk: Desk) -> None:
    desk.run("run", "writer", "x")
    code = "import os, sys; os.close(1); r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
    code += "from perdure.cli import main; sys.exit(main(['ps', '--all']))"

    done = subprocess.run(
        [sys.executable, "-c", code], env={**desk.environment, "PYTHONPATH": str(SOURCE)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "")
