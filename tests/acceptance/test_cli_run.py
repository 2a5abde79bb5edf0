"""`perdure run` and `perdure worker`: real commands, killed and stopped for real."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import perdure.sync
from perdure import Client
from perdure.states import TaskStatus
from tests.command_line import SOURCE, Desk, Said, finish, hear

VERDICTS = [
    "  it happened, and JSON is what it returned: a str",
    "    perdure answer Q1 --happened --result JSON",
    "  it did not; it runs, once its old worker is proven dead",
    "    perdure answer Q1 --not-happened",
    "  nobody knows; the agent gets OutcomeUnknown",
    "    perdure answer Q1 --give-up",
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def statuses(desk: Desk) -> list[str]:
    return [task["status"] for task in desk.run("ps", "--all", "--json").json["tasks"]]


# -- in good order --------------------------------------------------------------------------


def test_the_result_is_on_standard_output_alone(desk: Desk) -> None:
    said = desk.run("run", "writer", "hello")

    assert said == Said(0, "HELLO\n", "")


def test_a_result_that_is_no_text_is_json(desk: Desk) -> None:
    said = desk.run("run", "lead", '["a", "b"]')

    assert (said.code, said.json) == (0, ["A", "B"])


def test_arguments_may_be_named(desk: Desk) -> None:
    assert desk.run("run", "writer", "n=2", "topic=hi").out == "HI HI\n"


def test_a_negative_number_is_an_argument(desk: Desk) -> None:
    assert desk.run("run", "slow", "-1").out == "-1\n"
    assert "boom -5" in desk.run("run", "failing", "-5").err
    assert desk.run("run", "writer", "--", "--topic").out == "--TOPIC\n"


def test_an_agent_is_found_by_module_or_in_the_app(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_APP")

    assert desk.run("run", f"{desk.module}:writer", "x").out == "X\n"
    assert desk.run("run", "writer", "x", "--app", f"{desk.module}:app").out == "X\n"
    assert desk.run("run", f"{desk.module}.py:writer", "x").out == "X\n"
    assert desk.run("run", "writer", "x").code == 2


def test_json_tells_everything_about_the_task(desk: Desk) -> None:
    told = desk.run("run", "writer", "hello", "--json").json

    assert (told["status"], told["result"], told["error"], told["questions"]) == ("completed", "HELLO", None, [])
    assert told["prompt_tokens"] == 900
    assert told["tool_calls"] == 2


def test_a_terminal_shows_what_is_streamed_and_then_the_result(desk: Desk) -> None:
    shown = desk.on_terminal("run", "talker", "ana")

    assert shown.splitlines() == ["dear ana,", "hello", "said to ana"]


def test_what_is_streamed_does_not_go_into_a_file(desk: Desk) -> None:
    assert desk.run("run", "talker", "ana") == Said(0, "said to ana\n", "")


def test_json_tells_what_is_streamed_an_object_a_line_before_the_last(desk: Desk) -> None:
    *told, last = map(json.loads, desk.run("run", "talker", "ana", "--json").out.splitlines())

    assert [(one["event"], one["text"]) for one in told] == [
        ("ai_streaming", text) for text in ("dear ", "ana", ",\nhel", "lo")
    ]
    assert {one["task"] for one in told} == {last["id"]}
    assert last["result"] == "said to ana"


@pytest.mark.parametrize("heartbeat_s", ["0.2", "60"])
def test_a_run_whose_database_is_deleted_says_so_and_does_not_count(desk: Desk, heartbeat_s: str) -> None:
    """With a heartbeat it ends soon; without one the end of the run tells."""
    times = {"PERDURE_HEARTBEAT_S": heartbeat_s, "PERDURE_LEASE_S": "180"}
    with desk.begin("run", "slow", "2", **times) as process:
        hear(process.stdout, "slow 1")
        for file in desk.folder.glob("desk.db*"):
            file.unlink()

        said = finish(process)

    assert said.code == 4
    assert "its file was deleted or moved away while it was open" in said.err.splitlines()[-1]
    assert "2" not in said.out.splitlines()


def test_the_same_key_is_the_same_task(desk: Desk) -> None:
    desk.run("run", "writer", "x", "--key", "k")

    again = desk.run("run", "writer", "x", "--key", "k")

    assert again.out == "X\n"
    assert desk.effects == ["search x", "send team@example.org"]
    other = desk.run("run", "writer", "y", "--key", "k")
    assert other.code == 2
    assert "already belongs to task" in other.err


def test_a_finished_task_is_not_joined_without_a_key(desk: Desk) -> None:
    desk.run("run", "writer", "x")

    desk.run("run", "writer", "x")

    assert len(desk.effects) == 4


def test_the_same_line_joins_the_newest_open_task_and_new_starts_another(desk: Desk) -> None:
    desk.run("run", "waiting", "paid", "--timeout", "0.1")

    joined = desk.run("run", "waiting", "paid", "--timeout", "0.1")
    other = desk.run("run", "waiting", "paid", "--timeout", "0.1", "--new")

    assert "joins waiting …" in joined.err
    assert "joins" not in other.err
    assert len(statuses(desk)) == 2


def test_a_timeout_leaves_the_task_open_and_says_why(desk: Desk) -> None:
    said = desk.run("run", "waiting", "paid", "--timeout", "0.1")

    assert (said.code, said.out) == (1, "")
    assert 'not done after 100 ms: nobody has sent "paid" yet' in said.err
    assert "the same line goes on with it" in said.err


def test_a_failure_names_the_error_and_where_to_look(desk: Desk) -> None:
    said = desk.run("run", "failing", "7")

    assert (said.code, said.out) == (1, "")
    place = f"{desk.module}.py:55 in failing"
    first, second = said.err.splitlines()
    assert first == f"failed: ValueError: boom 7 ({place})"
    assert second.startswith("more: perdure why ")
    why = desk.run(*second.split()[2:]).out
    assert why.count(f"ValueError: boom 7 ({place})") == 2
    assert "failed from " in desk.run("show", second.split()[-1]).out
    told = desk.run("show", second.split()[-1], "--json").json
    assert (told["error_at"], told["attempts"][0]["error_at"]) == (place, place)


def test_a_key_whose_task_has_failed_says_how_to_start_anew(desk: Desk) -> None:
    desk.run("run", "failing", "7", "--key", "k")

    again = desk.run("run", "failing", "7", "--key", "k")
    (task,) = desk.run("ps", "--all", "--json").json["tasks"]

    anew = "a failed task stays failed: start it anew, with another key or without one"
    assert re.match(rf"…\w+ has this key, and ended .* ago; {anew}\nfailed: ValueError: boom 7 ", again.err)
    for command in ("why", "resume"):
        assert f"what moves it on\n  {anew}\n" in desk.run(command, task["id"]).out
    assert "starts anew" in desk.run("run", "failing", "7", "--key", "k", "--new").err


def test_a_failure_comes_with_its_traceback_on_standard_error(desk: Desk) -> None:
    said = desk.run_apart("run", "failing", "7")

    assert 'raise ValueError(f"boom {x}")' in said.err
    assert "src/perdure" not in said.err


def test_a_child_that_nobody_can_run_ends_the_run_with_what_to_do(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (desk.folder / f"{desk.module}.py").read_text()
    (desk.folder / f"{desk.module}x.py").write_text(text.replace("agents=[writer, lead,", "agents=[lead,"))
    monkeypatch.setenv("PERDURE_APP", f"{desk.module}x:app")

    said = desk.run("run", "lead", '["a"]')

    assert said.code == 2
    assert re.search(r"perdure: no live worker has agent writer, which lead …\w+ waits for. Add it to App\(", said.err)
    assert desk.run("run", "lead", '["a"]', "--app", f"{desk.module}:app").json == ["A"]


# -- a person is waited for -----------------------------------------------------------------


def test_a_run_that_only_a_person_can_move_ends_with_the_command_that_does(desk: Desk) -> None:
    asks = desk.run("run", "support", "o-7")
    assert (asks.code, asks.out) == (1, "")
    question = "waits for support: Is the customer of o-7 entitled?  (wants yes or no)"
    assert f"{question}\n  the agent gets the value\n    perdure answer Q1 VALUE\n" in asks.err

    assert desk.run("answer", "Q1", "yes", "--by", "bob").code == 0
    approves = desk.run("run", "support", "o-7")
    assert approves.code == 1
    ways = "  the call runs\n    perdure approve Q2\n"
    ways += '  the agent gets Denied, with the reason\n    perdure deny Q2 --because "…"\n'
    assert f'may refund(order="o-7", amount=250) run?\n{ways}' in approves.err

    assert desk.run("approve", "Q2", "--by", "ana").code == 0
    assert desk.run("run", "support", "o-7").out == "r-1\n"
    assert desk.effects == ["refund o-7"]


def test_json_names_the_open_questions(desk: Desk) -> None:
    told = desk.run("run", "support", "o-7", "--json")

    assert told.code == 1
    (question,) = told.json["questions"]
    assert (question["id"], question["to"], question["kind"]) == ("Q1", "support", "ask")


def test_a_denied_call_has_changed_nothing_and_was_not_made(desk: Desk) -> None:
    desk.run("run", "support", "o-7")
    desk.run("answer", "Q1", "true")
    desk.run("run", "support", "o-7")
    desk.run("deny", "Q2", "--because", "already refunded", "--by", "ana")
    desk.run("run", "support", "o-7")
    (task,) = desk.run("ps", "--all", "--json").json["tasks"]

    shown = desk.run("show", task["id"]).out

    assert desk.run("effects").out == ""
    assert "0 model calls, 0 tool calls" in shown
    assert "denied" in shown


def test_a_denied_call_comes_to_the_agent_with_its_reason(desk: Desk) -> None:
    desk.run("run", "support", "o-7")
    desk.run("answer", "Q1", "true")
    desk.run("run", "support", "o-7")

    desk.run("deny", "Q2", "--because", "already refunded", "--by", "ana")

    assert desk.run("run", "support", "o-7").out == "refused by ana: already refunded\n"
    assert desk.effects == []


# -- killed ---------------------------------------------------------------------------------


def test_a_killed_run_goes_on_with_the_same_line_and_asks_about_the_call_in_doubt(desk: Desk) -> None:
    killed = desk.run_apart("run", "writer", "hello", DIE="1")
    assert killed.code == -signal.SIGKILL
    assert desk.effects == ["search hello", "send team@example.org"]

    again = desk.run("run", "writer", "hello")

    assert again.code == 1
    resumed, *waits = again.err.splitlines()[1:9]
    assert resumed.startswith("resumed writer …")
    assert "at step 4: 1 model call, 1 tool call from the record (940 tokens not bought again)" in resumed
    assert waits == [
        'waits for you: did send_email(to="team@example.org", body="hello") happen?',
        *VERDICTS,
    ]
    assert desk.run("answer", "Q1", "--happened", "--result", '"m-9"').code == 0
    assert desk.run("run", "writer", "hello").out == "HELLO\n"
    assert desk.effects == ["search hello", "send team@example.org"]


def test_a_killed_run_is_seen_to_be_dead_at_once(desk: Desk) -> None:
    desk.run_apart("run", "writer", "hello", DIE="1")
    (task,) = desk.run("ps", "--json").json["tasks"]

    assert " is dead: no live worker has agent writer (last seen " in task["because"]
    why, resumed, doctor = (desk.run(*words) for words in (["why", task["id"]], ["resume", task["id"]], ["doctor"]))
    assert "which is dead" in why.out
    assert "\n    perdure worker\n" in why.out
    assert resumed.code == 1
    assert re.search(r"what moves it on\n  a worker .*\n    perdure worker\n", resumed.out)
    assert doctor.code == 1
    assert "0 live, 1 dead" in doctor.out
    assert "start a worker with perdure worker, or " in doctor.out
    assert "in doubt" in desk.run("effects").out
    assert "in doubt" in desk.run("effects", "--in-doubt").out


@pytest.mark.parametrize(
    ("verdict", "outcome"), [(["--happened", "--result", '"m-9"'], "completed"), (["--give-up"], "nobody knows")]
)
def test_a_settled_call_stays_with_the_attempt_that_made_it(desk: Desk, verdict: list[str], outcome: str) -> None:
    desk.run_apart("run", "writer", "hello", DIE="1")
    (before,) = desk.run("effects", "--json").json["effects"]
    desk.run("run", "writer", "hello")
    desk.run("answer", "Q1", *verdict)

    desk.run("run", "writer", "hello")

    (after,) = desk.run("effects", "--json").json["effects"]
    assert (after["is"], after["attempt"], after["began_at"]) == (outcome, 1, before["began_at"])
    assert f"in attempt 1: {outcome}" in desk.run("why", after["task"]).out


def test_an_answer_that_nobody_acts_on_says_how_to_start_somebody(desk: Desk) -> None:
    desk.run("run", "support", "o-7")

    answered = desk.run("answer", "Q1", "yes")

    assert answered.out.startswith("Q1 answered by ")
    assert "no live worker has agent support (last seen " in answered.err
    assert "start one with perdure worker, or run the line that began the task once more" in answered.err
    (task,) = desk.run("ps", "--json").json["tasks"]
    assert "start one with perdure worker" in task["because"]


def test_what_was_recovered_together_is_told_as_one_line(desk: Desk) -> None:
    desk.run_apart("run", "lead", '["a", "b", "c"]', DIE="1")

    again = desk.run("run", "lead", '["a", "b", "c"]')

    (line,) = [one for one in again.err.splitlines() if one.startswith("recovered ")]
    assert re.match(r"recovered 4 tasks: \d resumed at step [\d, and]+, \d waits? for you: did send_email\(", line)
    for question in desk.run("questions", "--json").json["questions"]:
        assert desk.run("answer", question["id"], "--not-happened").code == 0
    assert desk.run("run", "lead", '["a", "b", "c"]').json == ["A", "B", "C"]


def test_a_program_with_app_run_says_the_same(desk: Desk) -> None:
    program = f"import asyncio, {desk.module} as desk; print(asyncio.run(desk.app.run(desk.writer, 'hello')))"
    program = program.replace("desk.writer,", "desk.writer.options(key='k'),")
    environment = {**os.environ, **desk.environment, "PYTHONPATH": f"{SOURCE}:{desk.folder}"}
    killed = subprocess.run([sys.executable, "-c", program], env={**environment, "DIE": "1"}, check=False)
    assert killed.returncode == -signal.SIGKILL

    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    heard = hear(process.stderr, "--give-up")

    assert heard[0].startswith("resumed writer …")
    assert heard[-6:] == VERDICTS
    assert desk.run("answer", "Q1", "--happened", "--result", '"m-9"').code == 0
    assert finish(process) == Said(0, "HELLO\n", "")


# -- stopped --------------------------------------------------------------------------------


def begin_waiting(desk: Desk) -> str:
    """A task that waits, in a process that runs it; its id."""
    (task,) = desk.run("ps", "--json").json["tasks"]
    return str(task["id"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_hands_the_task_back_and_another_run_goes_on(desk: Desk, number: int) -> None:
    with desk.begin("run", "waiting", "paid") as process:
        wait_for_effect(desk, "waiting paid")
        stopped = finish(process, number)

    assert stopped.code == 128 + number
    assert "the same line goes on with it" in stopped.err
    assert statuses(desk) == [TaskStatus.PENDING]
    asyncio.run(send(desk, begin_waiting(desk), "paid", "yes"))
    assert desk.run("run", "waiting", "paid").out == "yes\n"


def test_a_worker_hands_back_and_another_takes_over(desk: Desk) -> None:
    with desk.begin("worker") as process:
        hear(process.stderr, " works for careful, failing, lead, slow, support, talker, waiting, writer on ")
        asyncio.run(start(desk, "waiting", ["a", "b", "c"]))
        for name in "abc":
            wait_for_effect(desk, f"waiting {name}")
        stopped = finish(process, signal.SIGTERM)
    assert stopped.code == 0
    assert stopped.out.startswith("3 handed back between two steps, 0 interrupted (")

    with desk.begin("worker", f"{desk.module}:app", "--permits", "2") as process:
        heard = hear(process.stderr, "took over")
        assert heard[-1] == "took over 3: 3 running, 0 questions"
        stopped = finish(process, signal.SIGINT)
    assert stopped.code == 0


def test_a_worker_tells_of_the_tasks_that_fail(desk: Desk) -> None:
    with desk.begin("worker") as process:
        hear(process.stderr, " works for ")
        asyncio.run(fail(desk))
        heard = hear(process.stderr, "failed failing …")

    assert re.search(rf": ValueError: boom 7 \({desk.module}.py:55 in failing\)$", heard[-1])
    assert any('raise ValueError(f"boom {x}")' in line for line in heard)


def test_a_worker_tells_as_json_what_it_does_an_event_a_line(desk: Desk) -> None:
    with perdure.sync.Client(str(desk.db)) as client:
        client.start("failing", x=1)
    with desk.begin("worker", "--json") as process:
        lines = hear(process.stdout, '"ended"')
        stopped = finish(process, signal.SIGTERM)

    events = [json.loads(line) for line in [*lines, *stopped.out.splitlines()]]
    first, *_, ended, last = events
    assert (first["event"], first["instance"]) == ("ready", last["instance"])
    assert "failing" in first["agents"]
    assert (ended["event"], ended["agent"], ended["status"]) == ("ended", "failing", "failed")
    assert "boom 1" in ended["error"]
    assert (last["event"], last["handed_back"], last["interrupted"]) == ("stopped", 0, 0)


@pytest.mark.parametrize("words", [("run", "loud:agent"), ("worker", "loud:app")])
def test_with_json_what_an_agent_and_its_processes_print_goes_to_standard_error(
    desk: Desk, words: tuple[str, str]
) -> None:
    (desk.folder / "loud.py").write_text(
        "import os, subprocess, perdure\n"
        "print('from the module')\n"
        "@perdure.agent\n"
        "async def agent() -> str:\n"
        "    print('from the agent')\n"
        "    os.write(1, b'from its code of C\\n')\n"
        "    subprocess.run(['echo', 'from a process'], check=True)\n"
        "    return 'done'\n"
        "app = perdure.App(agents=[agent])\n"
    )
    with perdure.sync.Client(str(desk.db)) as client:
        client.start("agent")
    with desk.begin(*words, "--json", PERDURE_APP="") as process:
        lines = hear(process.stdout, '"completed"')
        said = finish(process, *([signal.SIGTERM] if words[0] == "worker" else []))

    told = [json.loads(line) for line in [*lines, *said.out.splitlines()]]
    assert told[-1]["event" if words[0] == "worker" else "result"] in ("stopped", "done")
    for what in ("the module", "the agent", "its code of C", "a process"):
        assert said.err.count(f"from {what}\n") == 1


def test_a_second_signal_leaves_at_once(desk: Desk) -> None:
    slow = desk.folder / "slow.py"
    slow.write_text(
        "import asyncio, perdure\n"
        "@perdure.tool(risk='low')\n"
        "async def long() -> None:\n"
        "    print('inside', flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "@perdure.agent\n"
        "async def agent() -> None:\n"
        "    await long()\n"
        "app = perdure.App(agents=[agent])\n"
    )
    with desk.begin("run", "slow:agent", PERDURE_APP="", PERDURE_SHUTDOWN_GRACE_S="600") as process:
        hear(process.stdout, "inside")
        process.send_signal(signal.SIGTERM)
        hear(process.stderr, "again")
        stopped = finish(process, signal.SIGTERM)

    assert stopped.code == 128 + signal.SIGTERM
    assert statuses(desk) == [TaskStatus.RUNNING]


# -- shared ---------------------------------------------------------------------------------


def wait_for_effect(desk: Desk, effect: str) -> None:
    """Until a tool or agent of the other process has written its line; the test's time limit ends it otherwise."""
    while effect not in desk.effects:
        os.sched_yield()


async def start(desk: Desk, agent: str, names: list[str]) -> None:
    async with Client(str(desk.db)) as client:
        for name in names:
            await client.start(agent, name=name)


async def fail(desk: Desk) -> None:
    async with Client(str(desk.db)) as client:
        await client.start("failing", x=7)


async def send(desk: Desk, task_id: str, name: str, value: object) -> None:
    async with Client(str(desk.db)) as client:
        await client.send(task_id, name, value)
