"""The judge of the demo finds each fault that it is there to find: faults are planted into a trial that went well."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import codec
from perdure.definitions import AgentCall
from perdure.demo import scripts
from perdure.demo.confirmed import watched
from perdure.demo.ledger import CONFIRMED, EFFECTS, Ledger, Reader
from perdure.demo.play import replay_run
from perdure.demo.scenario import scenario
from perdure.demo.show import plan_for
from perdure.demo.telling import Teller
from perdure.demo.trial import Trial
from perdure.demo.verdict import Verdict, judge
from perdure.demo.worker import SETTINGS
from perdure.errors import Refused
from perdure.runtime.durable import new_task
from perdure.store import Store, admission, open_store
from perdure.store.database import Transaction, Value
from tests.rows import put_and_fail, query


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trial without kills that went well, its database among it."""
    folder = tmp_path_factory.mktemp("demo") / "trial"
    played = scenario()
    scripts.keep(folder / "scripts", played)
    plan = plan_for(played, kills=0, zombies=0, workers=1, copies=1, seed=1)
    url = str(folder / "demo.db")
    with watched(open_store(url, settings=SETTINGS), Ledger(folder / CONFIRMED)) as store:
        trial = Trial(plan, store, url, folder, Teller(as_json=True, out=io.StringIO()))
        assert asyncio.run(trial.run())
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with open_store(str(folder / "demo.db"), settings=SETTINGS) as opened:
        yield opened


def faults(verdict: Verdict) -> tuple[int, int, int, int]:
    return len(verdict.lost), len(verdict.twice), len(verdict.stuck), len(verdict.unequal)


def task_of(run: str) -> admission.NewTask:
    call = replay_run.bind(run).call
    assert isinstance(call, AgentCall)
    return new_task(call, key=run)


def execute(store: Store, sql: str, **values: Value) -> None:
    def run(tx: Transaction) -> None:
        assert tx.run(query(sql), **values) > 0

    store.call(run)


def test_a_trial_that_went_well_has_no_faults(store: Store, folder: Path) -> None:
    verdict = judge(store, folder)

    assert faults(verdict) == (0, 0, 0, 0)
    assert verdict.is_good
    assert (verdict.tasks, verdict.steps) == (20, 236)
    assert verdict.confirmed > verdict.steps


def test_a_confirmed_step_without_its_row_is_lost(store: Store, folder: Path) -> None:
    execute(store, "DELETE FROM steps WHERE n = (SELECT max(n) FROM steps WHERE key IS NOT NULL)")

    verdict = judge(store, folder)

    assert verdict.lost
    assert not verdict.is_good
    assert "step" in verdict.lost[0]


def test_a_confirmed_result_that_has_become_another_is_lost(store: Store, folder: Path) -> None:
    other = codec.pack(codec.encode("another result")).blob
    execute(
        store,
        "UPDATE steps SET output = :other WHERE n = (SELECT max(n) FROM steps WHERE key IS NOT NULL)",
        other=other,
    )

    verdict = judge(store, folder)

    assert faults(verdict) == (1, 0, 0, 0)


@pytest.mark.parametrize("table", ["messages", "events"])
def test_a_confirmed_message_or_event_without_its_row_is_lost(store: Store, folder: Path, table: str) -> None:
    execute(store, f"DELETE FROM {table} WHERE n = (SELECT max(n) FROM {table})")

    assert len(judge(store, folder).lost) == 1


def test_a_line_for_which_there_never_was_a_row_is_lost(store: Store, folder: Path) -> None:
    Ledger(folder / CONFIRMED).append("task", "NO-SUCH-TASK")

    assert faults(judge(store, folder)) == (1, 0, 0, 0)


def test_an_effect_that_stands_twice_in_the_ledger_is_found(store: Store, folder: Path) -> None:
    line = json.loads(_lines(folder / EFFECTS)[0])
    Ledger(folder / EFFECTS).append(*line)

    verdict = judge(store, folder)

    assert faults(verdict) == (0, 1, 0, 0)
    assert line[0] in verdict.twice[0]


def test_the_same_call_under_two_tokens_is_found(store: Store, folder: Path) -> None:
    _token, run, call, pid = json.loads(_lines(folder / EFFECTS)[0])
    Ledger(folder / EFFECTS).append("another-token", run, call, pid)

    verdict = judge(store, folder)

    assert faults(verdict) == (0, 1, 0, 0)
    assert call in verdict.twice[0]


def test_a_task_that_nobody_does_is_stuck(store: Store, folder: Path) -> None:
    run = "trip to Oslo~2"
    admitted = store.call(admission.admit, [task_of(run)])

    verdict = judge(store, folder)

    assert faults(verdict) == (0, 0, 1, 0)
    assert admitted.tasks[0].id in verdict.stuck[0]


def test_a_message_other_than_recorded_is_found(store: Store, folder: Path) -> None:
    script = scripts.fetch(folder / "scripts", "trip to Oslo")
    line = script.lines[1]
    changed = scripts.Script(
        script.id,
        script.title,
        (script.lines[0], scripts.Line(line.role, "Three nights."), *script.lines[2:]),
        script.result,
        script.error,
    )
    scripts.keep(folder / "scripts", [changed])

    verdict = judge(store, folder)

    assert faults(verdict) == (0, 0, 0, 1)
    assert "number 1 is the first to differ" in verdict.unequal[0]


def test_a_missing_last_message_is_found(store: Store, folder: Path) -> None:
    execute(store, "DELETE FROM messages WHERE n = (SELECT max(n) FROM messages)")

    verdict = judge(store, folder)

    assert len(verdict.unequal) == 1


def test_a_result_of_a_call_that_never_changed_the_world_is_found(store: Store, folder: Path) -> None:
    lines = _lines(folder / EFFECTS)
    (folder / EFFECTS).write_text("\n".join([*lines[1:], ""]))

    verdict = judge(store, folder)

    assert faults(verdict) == (0, 0, 0, 1)
    assert "never changed the world" in verdict.unequal[0]


def test_a_task_that_ended_otherwise_is_found(store: Store, folder: Path) -> None:
    script = scripts.fetch(folder / "scripts", "reading on shipping routes")
    assert script.error is not None
    forgiving = scripts.Script(script.id, script.title, script.lines, "all is well", None)
    scripts.keep(folder / "scripts", [forgiving])

    verdict = judge(store, folder)

    assert faults(verdict) == (0, 0, 0, 1)
    assert "is failed, not completed" in verdict.unequal[0]


# -- the ledger of what was confirmed -------------------------------------------------------


def test_a_write_is_noted_only_when_it_was_confirmed(tmp_path: Path) -> None:
    path = tmp_path / CONFIRMED
    with watched(open_store("memory:"), Ledger(path)) as store, Reader(path) as reader:
        admitted = store.call(admission.admit, [task_of("a")])
        noted = list(reader.news())
        with pytest.raises(Refused):
            store.call(put_and_fail, "b")

        assert ["task", admitted.tasks[0].id] in noted
        assert list(reader.news()) == []


def test_a_line_that_is_not_whole_yet_is_read_when_it_is(tmp_path: Path) -> None:
    path = tmp_path / CONFIRMED
    with Reader(path) as reader:
        path.write_bytes(b'["a",1]\n["b"')
        first = list(reader.news())
        with path.open("ab") as stream:
            stream.write(b",2]\n")

        assert first == [["a", 1]]
        assert list(reader.news()) == [["b", 2]]


def test_a_line_whose_writer_was_killed_in_the_middle_was_never_there(tmp_path: Path) -> None:
    path = tmp_path / CONFIRMED
    ledger = Ledger(path)
    with Reader(path) as reader:
        ledger.append("task", "a")
        with path.open("ab") as torn:
            torn.write(b'\n["step","b]')  # the file goes on in another page here
        ledger.append("task", "c")

        assert list(reader.news()) == [["task", "a"], ["task", "c"]]
    ledger.close()


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line]
