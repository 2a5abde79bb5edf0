"""`perdure show`: a task from its header to its last record, or its conversation up to any step."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure import phrases, recalled
from perdure.cli import screen
from perdure.cli.opening import opened
from perdure.cli.options import AppName, Db, Json, TaskId
from perdure.cli.shapes import (
    attempt_shape,
    end_shape,
    message_shape,
    plain,
    plain_body,
    question_shape,
    step_shape,
    task_shape,
)
from perdure.commands import Commands
from perdure.errors import Error
from perdure.model.message import Message
from perdure.model.step import Step, StepKind
from perdure.model.task import Attempt, Outcome, Task
from perdure.people import NOBODY, SettledCalls, answers, cancelled_by, ended_by, settled
from perdure.runtime.liveness import Judge, judge
from perdure.runtime.replay import Inspection, Record, inspect
from perdure.store import questions, task_lists, tasks
from perdure.store.database import Transaction
from perdure.why import because, of_child, standing


def show(
    task: TaskId,
    *,
    messages: Annotated[bool, typer.Option("--messages", help="Print the conversation too.")] = False,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Everything as it was at this record.")] = None,
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """Show one task: arguments, attempts, records, usage, messages.

    Records that are no calls, of turns and their states, are left out; --json has them.
    --step shows the conversation and the records as they were at that record.
    """
    with opened(db, app) as client:
        task_id = client.store.read(task_lists.find, task)
        page = client.store.read(_Page, task_id, at_step=step, judge=judge(client.store), commands=client.commands)
    if as_json:
        screen.put_json(_as_json(page))
        return
    _put_header(page)
    _put_trace(page)
    if messages or step is not None:
        for message in page.seen.messages:
            _put_message(message, page.now)
    elif page.seen.messages:
        them = "it" if len(page.seen.messages) == 1 else "them"
        screen.put(f"{phrases.count(len(page.seen.messages), 'message')}: --messages prints {them}")


class _Page:
    """Everything that is shown, from one snapshot."""

    def __init__(self, tx: Transaction, task_id: str, *, at_step: int | None, judge: Judge, commands: Commands) -> None:
        self.now = tx.now
        self.at_step = at_step
        self.task: Task = tasks.get(tx, task_id)
        self.because = because(tx, self.task, judge=judge, commands=commands)
        self.prompt = plain_body(tasks.get_input(tx, task_id).prompt)
        self.attempts: list[tuple[Attempt, Error | None]] = [
            (one, tasks.read_error(tx, one.error)) for one in task_lists.attempts(tx, task_id)
        ]
        self.answers = list(answers(tx, self.task, commands=commands))
        self.questions = [
            question_shape(
                one,
                questions.evidence(tx, one),
                answer=questions.answer_of(tx, one),
                cancelled_by=cancelled_by(tx, one),
            )
            for one in reversed(questions.of_task(tx, task_id))
        ]
        self.outcome: Outcome | None = task_lists.outcome(tx, task_id)
        self.ended_by = ended_by(tx, self.task)
        self.settled = settled(tx, task_id) if self.task.status.is_terminal else NOBODY
        self.seen: Inspection = inspect(tx, task_id, at_step=at_step)
        self.children = {one.step.step_index: of_child(tx, one.step) for one in self.seen.records}


def _as_json(page: _Page) -> dict[str, Any]:
    outcome = page.outcome
    return {
        **task_shape(page.task, page.because),
        "arguments": page.prompt,
        "result": None if outcome is None else plain_body(outcome.result),
        **end_shape(None if outcome is None else outcome.error, page.ended_by),
        "attempts": [attempt_shape(one, error) for one, error in page.attempts],
        "questions": page.questions,
        "records": [step_shape(one.step, one.input, page.settled.of(one.step)) for one in page.seen.records],
        "transcript": [message_shape(one) for one in page.seen.messages],
        "last_step": page.seen.last_step,
        "complete": page.seen.complete,
        "last_tool_call_id": page.seen.last_tool_call_id,
    }


def _put_header(page: _Page) -> None:
    task, outcome = page.task, page.outcome
    screen.put(standing(task, page.because))
    rows = [
        ("call", recalled.call(task.agent, page.prompt)),
        ("session", task.session_id),
        ("admitted", phrases.moment(task.created_at, page.now)),
    ]
    if task.idempotency_key is not None and not task.idempotency_key.startswith("="):  # Those are perdure's own.
        rows.append(("key", task.idempotency_key))
    if task.parent_task_id is not None:
        rows.append(("parent", task.parent_task_id))
    if task.origin == "import":
        rows.append(("origin", "imported: it ran elsewhere"))
    if task.deadline_at is not None:
        rows.append(("deadline", phrases.moment(task.deadline_at, page.now)))
    tokens = task.prompt_tokens + task.completion_tokens
    # Counted when they were asked for; one that nobody allowed was not made.
    calls = [one.step for one in page.seen.records if one.step.event_kind == StepKind.TOOL_CALL]
    refused = sum(phrases.outcome(step) in ("denied", "expired") for step in calls)
    tools = phrases.count(max(0, task.tool_calls - refused), "tool call")
    used = f"{phrases.count(task.iterations, 'model call')}, {tools}"
    cost = f", cost {task.cost:g}" if task.cost else ""
    rows.append(("used", f"{used}, {tokens:,} tokens{cost}"))
    for one, error in page.attempts:
        ended = "" if one.ended_at is None else f", {phrases.duration(one.ended_at - one.started_at)}"
        why = "" if error is None else f": {phrases.failure(error)}"
        began = phrases.moment(one.started_at, page.now)
        rows.append((f"attempt {one.number}", f"{one.status} from {began}{ended}{why}"))
    rows += [("answer", line) for line in page.answers]
    if outcome is not None and outcome.result is not None:
        rows.append(("result", phrases.as_json(plain_body(outcome.result), limit=400)))
    screen.put_rows([(f"  {name}", value) for name, value in rows])


def _put_trace(page: _Page) -> None:
    if page.at_step is not None:
        screen.put(f"as it was at record {page.at_step}, {'' if page.seen.complete else 'not '}complete")
    has_ended = page.task.status.is_terminal
    records = [record for record in page.seen.records if not record.step.is_note]
    shown = [
        _line(record, page.now, has_task_ended=has_ended, child=page.children[record.step.step_index])
        for record in records
    ]
    below = [_below(record.step, page.settled) for record in records]
    screen.put_rows(shown, head=("STEP", "AT", "KIND", "OUTCOME", "TOOK", "WHAT"), styled=3, below=below)


def _below(step: Step, settled_by: SettledCalls) -> list[str]:
    """How a call failed, and who settled it."""
    error, by = phrases.error_of(step), settled_by.of(step)
    return [*([] if error is None else [phrases.failure(error)]), *([] if by is None else [str(by)])]


def _line(record: Record, now: int, *, has_task_ended: bool, child: str) -> tuple[str, ...]:
    step = record.step
    what = step.name or step.event_kind
    spent = "" if step.ended_at in (None, step.timestamp) else phrases.duration(step.ended_at - step.timestamp)
    below = f"  child {step.child_task_id}" if step.child_task_id else ""
    return (
        str(step.step_index),
        phrases.moment(step.timestamp, now),
        step.event_kind,
        child or phrases.outcome(step, has_task_ended=has_task_ended),
        spent,
        recalled.call(what, record.input) + below,
    )


def _put_message(message: Message, now: int) -> None:
    name = f" {message.tool_name}" if message.tool_name else ""
    screen.put(f"\n{message.role}{name}  {phrases.moment(message.created_at, now)}")
    if message.reasoning:
        screen.put(_indented(f"(reasoning) {message.reasoning}"))
    content = plain(message.content)
    if content is not None:
        screen.put(_indented(content if isinstance(content, str) else phrases.as_json(content, limit=4000)))
    calls = plain(message.tool_calls)
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            screen.put(_indented(phrases.call(str(call.get("name")), call.get("arguments"))))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
