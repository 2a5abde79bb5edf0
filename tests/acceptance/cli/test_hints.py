"""What a command tells to do next does it, as it stands."""

from __future__ import annotations

import pytest

from perdure.model.question import QuestionKind
from tests.command_line import Desk
from tests.world import World, done, packed

LATE = """
import asyncio, perdure

@perdure.tool
async def pay(order: str) -> int:
    await asyncio.sleep(60)
    return 1

@perdure.agent(deadline=0.5)
async def late(order: str) -> int:
    return await pay(order)

app = perdure.App(agents=[late])
"""


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


def test_a_run_whose_time_is_over_inside_a_call_says_that_the_call_is_in_doubt(desk: Desk) -> None:
    (desk.folder / f"late_{desk.module}.py").write_text(LATE, encoding="utf-8")

    said = desk.run("run", f"late_{desk.module}:late", "o-1").err

    assert "timed out" in said
    assert "late: 1 call in doubt: perdure why " in said


@pytest.mark.parametrize(
    ("wants", "word"),
    [("datetime", "2026-01-01T10:00Z"), ("datetime | None", "2026-01-01 10:00+02:00"), ("time", "09:30")],
)
def test_a_moment_may_be_told_to_the_minute(desk: Desk, world: World, wants: str, word: str) -> None:
    world.ask(world.start(), QuestionKind.ASK, evidence=packed({"wants": wants}))

    assert desk.run("answer", "Q1", word).code == 0


def test_a_moment_without_a_zone_is_still_refused(desk: Desk, world: World) -> None:
    world.ask(world.start(), QuestionKind.ASK, evidence=packed({"wants": "datetime"}))

    assert "give it with its zone" in desk.run("answer", "Q1", "2026-01-01T10:00").err


def test_effects_name_who_answered_the_question_about_a_call(desk: Desk, world: World) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.CALL, text="may it run?", step_key="pay")
    desk.run("approve", "Q1", "--by", "ana")
    world.record(claim, "pay", done(1), name="pay", risk="high")

    assert "    Q1 approved, by ana, " in desk.run("effects").out


def test_a_result_that_does_not_fit_is_told_which_part_of_it_does_not(desk: Desk, world: World) -> None:
    evidence = packed({"tool": "elsewhere", "arguments": {}, "returns": "list[int]"})
    world.ask(world.start(), QuestionKind.STEP_IN_DOUBT, text="did it?", evidence=evidence)

    refused = desk.run("answer", "Q1", "--happened", "--result", '[1, "x"]').err

    assert refused.endswith('returns list[int], which [1, "x"] is not: [1]: "x" is no int: give a number\n')
