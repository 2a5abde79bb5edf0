"""What `perdure run` and `perdure worker` tell beside the result: of questions, and as JSON."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time

import pytest

from perdure import Client
from tests.acceptance.cli.conftest import Story
from tests.command_line import SOURCE, Desk, finish, hear


def test_json_is_alone_on_standard_output_whatever_agents_print(desk: Desk) -> None:
    module = desk.folder / f"{desk.module}.py"
    module.write_text("print('imported')\n" + module.read_text())

    in_process, apart = desk.run("run", "slow", "1", "--json"), desk.run_apart("run", "slow", "1", "--json")
    with desk.begin("worker", "--json") as process:
        hear(process.stdout, '"ready"')
        asyncio.run(start(desk, "slow", n=1))
        hear(process.stderr, "slow 1")
        worked = finish(process, signal.SIGTERM)

    assert (in_process.json["result"], apart.json["result"]) == (1, 1)
    assert "slow 1" in in_process.err
    assert apart.err.splitlines()[:2] == ["imported", "slow 1"]
    assert [json.loads(line)["event"] for line in worked.out.splitlines()][-1] == "stopped"
    assert desk.run_apart("run", "slow", "1", "--new").out.startswith("imported\nslow 1\n")


def test_a_worker_whose_reader_has_gone_stops_in_good_order(desk: Desk) -> None:
    with desk.begin("worker", "--json") as process:
        hear(process.stdout, '"ready"')
        assert process.stdout is not None
        process.stdout.close()
        asyncio.run(start(desk, "slow", n=1))
        process.stdout = None
        _, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "Traceback" not in err


def test_json_of_every_command_is_alone_whatever_the_module_of_the_app_prints(desk: Desk, story: Story) -> None:
    module = desk.folder / f"{desk.module}.py"
    module.write_text("import os\nprint('imported')\nos.write(1, b'by its code of C\\n')\n" + module.read_text())
    lead = story.lead.task.id
    asking = [
        ["ps"], ["why", lead], ["show", lead], ["questions"], ["effects"], ["doctor"],
        ["answer", story.question, "--give-up"], ["cancel", lead], ["resume", lead], ["import", str(desk.folder)],
    ]  # fmt: skip

    for words in asking:
        said = desk.run_apart(*words, "--json")

        assert isinstance(said.json, dict), words
        assert said.err.splitlines()[:2] == ["imported", "by its code of C"], words


def test_json_with_standard_output_closed_says_nothing_and_is_no_error(desk: Desk) -> None:
    (desk.folder / f"{desk.module}.py").write_text(
        "import perdure, subprocess\n@perdure.agent\nasync def loud() -> int:\n"
        "    subprocess.run(['echo', 'loud'], check=True)\n    return 1\napp = perdure.App(agents=[loud])\n"
    )
    told = {"run loud --json": "loud\n", "run loud": "", "ps --all --json": "", "ps": "no open tasks\n"}

    for words, err in told.items():
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m perdure.cli {words} >&-"],
            env={**desk.environment, "PYTHONPATH": str(SOURCE)}, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

        assert (done.returncode, done.stderr) == (0, err), words


@pytest.mark.parametrize("command", ["run", "worker"])
def test_what_is_waited_for_is_told_with_its_choices_and_the_result_of_its_tool(desk: Desk, command: str) -> None:
    module = desk.folder / f"{desk.module}.py"
    module.write_text(
        "from typing import Literal\n"
        + module.read_text().replace(
            'if not await perdure.ask(f"Is the customer of {order} entitled?", type=bool, to="support"):',
            'if await perdure.ask("Which?", type=Literal["a", "b"]) != "a":',
        )
    )
    if command == "worker":
        asyncio.run(start(desk, "support", order="o-7"))
        with desk.begin("worker") as process:
            heard = hear(process.stderr, "perdure answer")
    else:
        heard = desk.run_apart("run", "support", "o-7").err.splitlines()

    place = next(number for number, line in enumerate(heard) if line.startswith("waits for you"))
    assert heard[place : place + 3] == [
        'waits for you: Which?  (wants one of "a", "b")',
        "  the agent gets the value",
        "    perdure answer Q1 VALUE",
    ]


def test_a_task_that_is_taken_up_after_its_deadline_is_not_told_to_have_resumed(desk: Desk) -> None:
    (desk.folder / f"{desk.module}.py").write_text(
        "import perdure\n@perdure.tool(risk='low')\nasync def look() -> None: ...\n"
        "@perdure.agent(deadline=1)\nasync def late() -> int:\n"
        "    await look()\n    return await perdure.ask('how many?', type=int)\napp = perdure.App(agents=[late])\n"
    )
    assert "waits for you" in desk.run("run", "late").err
    ends_at = time.monotonic() + 30
    while "its deadline passed" not in (page := desk.run("ps").out):
        assert time.monotonic() < ends_at, page

    said = desk.run("run", "late").err

    assert "timed out: TimedOut: deadline exceeded\n" in said
    assert "resumed" not in said


async def start(desk: Desk, agent: str, **arguments: object) -> None:
    async with Client(str(desk.db)) as client:
        await client.start(agent, **arguments)
