"""The examples do what their first lines say, in processes of their own that get killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import perdure.sync as perdure

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 60


class Stage:
    """A folder in which examples run: their database, what was mailed, and what the model was paid for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Run an example; it is killed with the test if it has not ended by then."""
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / script), *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "FAKE_LLM_BILL": "bill.txt", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, script: str, *arguments: str, **environment: str) -> str:
        """Run an example to its end; what it printed."""
        process = self.start(script, *arguments, **environment)
        output, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
        return output

    def lines(self, name: str) -> list[str]:
        """What a file holds by now."""
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def client(self) -> perdure.Client:
        """Looks at the same database."""
        return perdure.Client(str(self.folder / "perdure.db"))

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path)
    yield found
    found.end()


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs an example in a folder of its own, to know its result."""
    found = Stage(tmp_path_factory.mktemp("undisturbed"))
    yield found.run
    found.end()


def until(happened: Callable[[], bool]) -> None:
    """Look until it has happened."""
    for _ in range(LIMIT_S * 100):
        if happened():
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not happen")


def is_running(stage: Stage) -> bool:
    """Whether a worker has taken a task."""
    if not (stage.folder / "perdure.db").exists():
        return False
    with stage.client() as client:
        return bool(client.tasks(status="running"))


def recorded(stage: Stage) -> list[str]:
    """Names of the calls whose outcome is on record."""
    if not (stage.folder / "perdure.db").exists():
        return []
    with stage.client() as client:
        return [
            step.name for task in client.tasks() for step, _ in client.task(task.id).steps() if step.outcome is not None
        ]


@pytest.mark.parametrize("calls_before", [0, 1, 2])
def test_an_agent_killed_between_calls_goes_on_where_it_was(
    stage: Stage, undisturbed: Callable[..., str], calls_before: int
) -> None:
    expected = undisturbed("assistant.py", "who won?")

    first = stage.start("assistant.py", "who won?", FAKE_LLM_THINKING_S="0.4")
    until(lambda: len(recorded(stage)) >= calls_before and bool(stage.lines("bill.txt") or not calls_before))
    first.kill()
    bought_before = len(stage.lines("bill.txt"))
    result = stage.run("assistant.py", "who won?")

    assert result == expected
    assert len(stage.lines("outbox.txt")) == 1
    # Three answers make the conversation; one that was on its way when the process died is bought again.
    assert len(stage.lines("bill.txt")) <= 3 + (1 if bought_before else 0)


@pytest.mark.parametrize("verdict", ["happened", "not happened"])
def test_an_agent_killed_inside_a_dangerous_call_asks_before_it_goes_on(
    stage: Stage, undisturbed: Callable[..., str], verdict: str
) -> None:
    expected = undisturbed("assistant.py", "who won?")

    first = stage.start("assistant.py", "who won?", MAIL_TAKES_S="600")
    until(lambda: bool(stage.lines("outbox.txt")))
    first.kill()
    second = stage.start("assistant.py", "who won?")
    with stage.client() as client:
        until(lambda: bool(client.questions()))
        (question,) = client.questions()
        mailed_before_the_answer = len(stage.lines("outbox.txt"))
        question.resolve(perdure.happened("m-1") if verdict == "happened" else perdure.not_happened(), by="ana")
    result, errors = second.communicate(timeout=LIMIT_S)

    mails = [json.loads(line) for line in stage.lines("outbox.txt")]
    assert (question.kind, question.tool) == ("step_in_doubt", "send_email")
    assert question.args["to"] == "team@example.org"
    assert result == expected, errors
    assert mailed_before_the_answer == 1
    assert len(mails) == (1 if verdict == "happened" else 2)
    assert len({mail["token"] for mail in mails}) == 1  # What a provider needs to send it once.
    assert len(stage.lines("bill.txt")) == 3


def test_a_synchronous_agent_goes_on_where_it_was_as_well(stage: Stage, undisturbed: Callable[..., str]) -> None:
    expected = undisturbed("sync_assistant.py", "owls")

    first = stage.start("sync_assistant.py", "owls", FAKE_LLM_THINKING_S="0.4")
    until(lambda: "search" in recorded(stage))
    first.kill()
    result = stage.run("sync_assistant.py", "owls")

    assert result == expected
    assert len(stage.lines("bill.txt")) in (2, 3)


def test_an_interrupted_synchronous_agent_goes_on_without_buying_anything_again(
    stage: Stage, undisturbed: Callable[..., str]
) -> None:
    expected = undisturbed("sync_assistant.py", "owls")

    first = stage.start("sync_assistant.py", "owls", FAKE_LLM_THINKING_S="1")
    until(lambda: is_running(stage))
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=LIMIT_S)
    second = stage.run("sync_assistant.py", "owls")

    assert "KeyboardInterrupt" in errors
    assert second == expected
    assert len(stage.lines("bill.txt")) == 2  # The call that was under way was allowed to end.


def test_a_refund_is_paid_after_two_people_said_yes(stage: Stage) -> None:
    assert stage.run("pay.py", "o-7") == "r-1 (250 for o-7)\n"
    assert stage.run("pay.py", "o-7") == "r-1 (250 for o-7)\n"


def test_a_budget_ends_one_part_and_leaves_the_other_alone(stage: Stage) -> None:
    api, pages = stage.run("build.py", "shop", FAKE_LLM_THINKING_S="0").splitlines()

    assert api == "shop: the API: 3 lines"
    assert re.fullmatch(r"shop: the pages: \d of 30 lines, then the budget ended \(tokens .*\)", pages)


def test_a_request_that_is_sent_twice_starts_one_report_which_can_be_followed_from_anywhere(stage: Stage) -> None:
    server = stage.start("web.py", "0")
    assert server.stdout is not None
    address = f"http://127.0.0.1:{server.stdout.readline().split()[-1]}"

    def post() -> str:
        request = urllib.request.Request(
            f"{address}/reports?topic=owls", method="POST", headers={"Idempotency-Key": "r-1"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            assert response.status == 202
            return str(json.load(response)["task"])

    def follow(after: int) -> list[tuple[int, str]]:
        request = urllib.request.Request(f"{address}/reports/{task}/events", headers={"Last-Event-ID": str(after)})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            text = response.read().decode()
        return [(int(number), kind) for number, kind in re.findall(r"id: (\d+)\nevent: (\w+)", text)]

    task = post()
    again = post()
    everything = follow(0)
    rest = follow(everything[2][0])
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=LIMIT_S)

    assert task == again
    assert everything[0][1] == "task_admitted"
    assert everything[-1][1] == "task_completed"
    assert rest == everything[3:]


def test_the_tests_of_the_payment_example_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "test_pay.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(EXAMPLES)])}

    played = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert played.returncode == 0, played.stdout + played.stderr
    assert "4 passed" in played.stdout
