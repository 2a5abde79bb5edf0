"""What a command tells to do next does it, as it stands."""

from __future__ import annotations

import pytest

from tests.command_line import Desk
from tests.world import World


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("answer Q99 5", "`perdure questions --db other.db`"),
        ("approve Q99", "`perdure questions --db other.db`"),
        ("why nowhere", "`perdure ps --all --db other.db`"),
        ("cancel nowhere", "`perdure ps --all --db other.db`"),
        ("settle {ended} 7 --give-up", "`perdure show {ended} --db other.db`"),
        ("settle {open} 0 --give-up", "`perdure why {open} --db other.db`"),
    ],
)
def test_a_refusal_names_whole_commands(desk: Desk, world: World, words: str, hint: str) -> None:
    ids = {"ended": world.start(), "open": world.start()}
    world.fail(ids["ended"])
    world.begin(ids["open"], "pay", name="pay", risk="high")
    names = {name: claim.task.id for name, claim in ids.items()}
    desk.db.with_name("other.db").symlink_to(desk.db)

    refused = desk.run(*words.format(**names).split(), "--db", "other.db")

    assert refused.code in (1, 3)
    assert hint.format(**names) in refused.err


def test_a_run_of_another_one_does_not_say_that_its_line_goes_on_with_it(desk: Desk) -> None:
    first = desk.run("run", f"{desk.module}:waiting", "ana", "--new", "--timeout", "0.2").err
    second = desk.run("run", f"{desk.module}:waiting", "ana", "--timeout", "0.2").err

    assert ": the same line without --new goes on with it" in first
    assert "joins waiting" in second
    assert ": the same line goes on with it" in second
