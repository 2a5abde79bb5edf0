"""What a run tells while it goes on: what was recovered together is one line, and every question names its commands."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.commands import Commands
from perdure.news import News

TASK = "01J0000000000000000000"


def facts(number: int, **more: Any) -> dict[str, Any]:
    return {"task": f"{TASK}{number:04d}", "agent": "lead", "attempt": 2, **more}


def resumed(number: int, *, step: int = 6, models: int = 0, tools: int = 0, tokens: int = 0) -> dict[str, Any]:
    return facts(number, step=step, model_calls=models, tool_calls=tools, tokens=tokens)


def recovered(number: int, **more: Any) -> dict[str, Any]:
    return facts(number, **{"verdict": "auto_resume", "steps": 3, "question": "", "text": "", **more})


def question(number: int, task: int, *, kind: str = "step_in_doubt", text: str = "did it happen?") -> dict[str, Any]:
    return facts(task, question=f"Q{number}", kind=kind, text=text, to="")


def test_one_resumed_task_is_told_with_what_its_records_saved() -> None:
    news = News()
    news.hear("took_over", facts(1))

    news.hear("resumed", resumed(1, models=3, tools=2, tokens=4180))

    assert news.lines() == [
        "resumed lead …0001 at step 6: 3 model calls, 2 tool calls from the record (4,180 tokens not bought again)"
    ]


def test_a_task_whose_records_saved_no_call_is_told_all_the_same() -> None:
    news = News()
    news.hear("took_over", facts(1))

    news.hear("resumed", resumed(1, step=1))

    assert news.lines() == ["resumed lead …0001 at step 1"]


NOT_HAPPENED = "it did not; it runs, once its old worker is proven dead"


def test_several_recovered_tasks_are_one_line() -> None:
    news = News(commands=Commands(" --db a.db"))
    for number in (1, 2, 3):
        news.hear("recovered", recovered(number))
        news.hear("took_over", facts(number))
    news.hear("resumed", resumed(1, step=7, models=1, tokens=10))
    news.hear("resumed", resumed(2, step=4, tools=2))
    news.hear("resumed", resumed(3, step=5))
    news.hear("question", question(19, 3))

    lines = news.lines()

    assert lines == [
        "recovered 3 tasks: 2 resumed at step 7 and 4, 1 waits for you: did it happen?",
        "  1 model call, 2 tool calls from the record (10 tokens not bought again)",
        "  waits for you: did it happen?",
        "    it happened, and JSON is what it returned",
        "      perdure answer Q19 --happened --result JSON --db a.db",
        "    it happened, if it is a call that returns nothing",
        "      perdure answer Q19 --happened --db a.db",
        f"    {NOT_HAPPENED}",
        "      perdure answer Q19 --not-happened --db a.db",
        "    nobody knows; the agent gets OutcomeUnknown",
        "      perdure answer Q19 --give-up --db a.db",
    ]


def test_tasks_that_go_on_after_an_answer_were_not_recovered() -> None:
    news = News()
    for number in (1, 2):
        news.hear("took_over", facts(number))
        news.hear("resumed", resumed(number))

    assert news.lines() == ["took up 2 tasks: 2 resumed at step 6 and 6"]


def test_a_question_of_a_task_that_was_begun_here_is_told_alone() -> None:
    news = News()
    news.hear("started", facts(1))

    news.hear("question", {**question(3, 1, kind="call", text="may it run?"), "to": "finance"})

    assert news.lines() == [
        "waits for finance: may it run?",
        "  the call runs",
        "    perdure approve Q3",
        "  the agent gets Denied, with the reason",
        '    perdure deny Q3 --because "…"',
    ]


def test_later_attempts_of_this_process_are_no_news() -> None:
    news = News()
    news.hear("started", facts(1))
    news.hear("took_over", facts(1))

    news.hear("resumed", resumed(1, models=3))

    assert news.lines() == []


def test_a_question_is_told_once() -> None:
    told: list[str] = []
    news = News(say=told.append)
    news.hear("question", question(3, 1))
    news.tell()

    news.hear("question", question(3, 1))
    news.tell()

    assert [line for line in told if line.startswith("waits for ")] == ["waits for you: did it happen?"]


def test_of_a_task_that_has_ended_nothing_is_kept() -> None:
    news = News(counts_only=True, say=lambda _: None)
    empty = sizes(news)
    for number in range(50):
        news.hear("started" if number % 2 else "took_over", facts(number, root="s"))
        news.hear("question", question(number, number))
        news.hear("ended", facts(number, status="completed", error="", ms=1))
        news.tell()

    assert sizes(news) == empty


def sizes(news: News) -> dict[str, int]:
    """How much each of its collections holds."""
    return {name: len(kept) for name, kept in vars(news).items() if isinstance(kept, dict | list | set)}


def test_a_task_that_waits_for_a_yes_to_go_on_counts_as_recovered() -> None:
    news = News()
    news.hear("took_over", facts(1))
    news.hear("resumed", resumed(1, step=2))

    news.hear("recovered", recovered(2, verdict="park", question="Q5", text="again?"))

    assert news.lines()[0] == "recovered 2 tasks: 1 resumed at step 2, 1 waits for you: again?"
    assert "perdure approve Q5" in news.lines()[3]


def test_the_news_of_other_tasks_is_a_count() -> None:
    news = News(commands=Commands(" --db a.db"))
    news.hear("took_over", facts(1, root="other"))
    news.hear("resumed", resumed(1, tools=2) | {"root": "other"})
    news.hear("question", question(3, 1))
    news.hear("started", facts(2, root="mine"))
    news.hear("question", question(4, 2, kind="ask", text="which?"))

    news.about("mine")

    assert news.lines() == [
        "waits for you: which?",
        "  the agent gets the value",
        "    perdure answer Q4 VALUE --db a.db",
        "other tasks of this app: 1 taken up, 1 question (perdure questions --db a.db)",
    ]


def test_a_worker_counts_what_it_took_over() -> None:
    news = News(counts_only=True)
    for number in range(500):
        news.hear("took_over", facts(number))
    for number in range(7):
        news.hear("question", question(number, number))

    lines = news.lines()

    assert lines[0] == "took over 500: 493 running, 7 questions"
    assert len([line for line in lines if line.startswith("waits for you: ")]) == 7


def test_a_worker_that_took_over_nothing_says_nothing() -> None:
    news = News(counts_only=True)

    news.hear("started", facts(1))

    assert news.lines() == []


def test_a_worker_that_only_waits_for_a_person_took_nothing_over() -> None:
    news = News(counts_only=True)
    news.hear("took_over", facts(1))
    news.hear("question", question(3, 1, kind="ask", text="which?"))
    news.hear("recovered", recovered(2, verdict="park", question="Q5", text="again?"))

    assert [line for line in news.lines() if not line.startswith("  ")] == [
        "waits for you: which?",
        "waits for you: again?",
    ]


def test_a_worker_tells_how_each_task_failed_and_on_a_terminal_which_completed() -> None:
    ended = [
        facts(1, status="failed", error="KeyError: 'total' (shop.py:7 in pay)", ms=12_000),
        facts(2, status="completed", error="", ms=300),
        facts(3, status="timed_out", error="", ms=60_000),
    ]
    lines = {}
    for tells_completed in (False, True):
        news = News(counts_only=True, tells_completed=tells_completed)
        for one in ended:
            news.hear("ended", one)
        lines[tells_completed] = news.lines()

    assert lines[False] == [
        "failed lead …0001 after 12 s: KeyError: 'total' (shop.py:7 in pay)",
        "timed out lead …0003 after 1 min",
    ]
    assert lines[True][1] == "completed lead …0002 after 300 ms"


def test_a_run_tells_of_its_own_end_by_itself() -> None:
    news = News()

    news.hear("ended", facts(1, status="failed", error="x", ms=1))

    assert news.lines() == []


async def test_what_comes_together_is_told_together_and_the_rest_at_the_end() -> None:
    told: list[str] = []
    news = News(say=told.append)
    running = asyncio.get_running_loop().create_task(news.run())
    await asyncio.sleep(0)
    for number in (1, 2):
        news.hear("took_over", facts(number))
        news.hear("resumed", resumed(number))

    running.cancel()
    await asyncio.wait({running})

    assert told == ["took up 2 tasks: 2 resumed at step 6 and 6"]


def test_a_run_that_is_cut_off_before_it_has_a_task_says_nothing_of_one() -> None:
    told: list[str] = []
    news = News(say=told.append)
    news.tell_stopped("", has_key=True)

    news.tell_stopped("lead …0001", has_key=True)

    assert told == ["stopped: lead …0001 stays open; the same line goes on with it"]


def test_what_several_runs_wait_for_is_told_one_by_one() -> None:
    told: list[str] = []
    news = News(say=told.append)
    with news.telling_of("a"):
        with news.telling_of("b"):
            news.hear("question", question(4, 2, kind="ask", text="which?") | {"root": "b"})
        news.tell()
        news.hear("question", question(5, 2, kind="ask", text="why?") | {"root": "b"})
        news.tell()

    assert told[0] == "waits for you: which?"
    assert told[-1] == "other tasks of this app: 1 question (perdure questions)"
