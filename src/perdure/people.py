"""What is wanted of people, and what they have said: answers, calls they settled, tasks they cancelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from perdure import phrases
from perdure.commands import Commands
from perdure.model.event import EventKind
from perdure.model.question import GIVE_UP, HAPPENED, NOT_HAPPENED, Question, QuestionKind
from perdure.model.step import Step
from perdure.model.task import Task, WaitKind
from perdure.runtime.answers import told
from perdure.states import QuestionStatus, TaskStatus
from perdure.store import ends, events, questions, tasks
from perdure.store.database import Transaction

_VERDICTS: Final = {HAPPENED: "it happened", NOT_HAPPENED: "it did not happen", GIVE_UP: "nobody knows"}
_WANTED: Final[Mapping[str, str]] = {
    "bool": "yes or no",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bytes": 'bytes, which only code can give: Question.answer(b"…", by="…")',
}


@dataclass(frozen=True, slots=True)
class Settled:
    """Who said what became of a call, and how it was found out."""

    by: str
    because: str

    def __str__(self) -> str:
        return f"settled by {self.by or 'somebody'}" + (f": {phrases.one_line(self.because)}" if self.because else "")


@dataclass(frozen=True, slots=True)
class SettledCalls:
    """The calls of a task that somebody settled, by their keys and tries."""

    by_call: Mapping[tuple[str | None, int], Settled]

    def of(self, step: Step) -> Settled | None:
        """Who settled a call, where somebody did."""
        return self.by_call.get((step.key, step.try_number))


NOBODY: Final = SettledCalls({})


def wanted(evidence: object) -> str:
    """What an agent's question wants as its answer: `wants a whole number`; "" where everything will do."""
    wants = str(evidence.get("wants", "any")) if isinstance(evidence, Mapping) else "any"
    if wants == "any":
        return ""
    made_of = evidence.get("made_of") if isinstance(evidence, Mapping) else ""
    return f"wants {_WANTED.get(wants) or told(wants)}" + (f": {made_of}" if made_of else "")


def answers(tx: Transaction, task: Task, *, commands: Commands) -> Iterator[str]:
    """What became of a task's questions, oldest first: what was said, by whom, when and why.

    Below a question that is shortened stands the one of `commands` that shows all of it.
    """
    for question in reversed(questions.of_task(tx, task.id)):
        if question.status is not QuestionStatus.OPEN:
            yield f"{question.id} {phrases.asked(question.text)} {said(tx, question)}"
            if phrases.is_cut(question.text):
                yield f"  all of it: {commands.whole(question.id)[0]}"


def said(tx: Transaction, question: Question) -> str:
    """What became of a question that is no longer open: what was said, by whom, when and why."""
    who = question.answered_by or cancelled_by(tx, question)
    by = f", by {who}" if who else ""
    at = "" if question.answered_at is None else f", {phrases.moment(question.answered_at, tx.now)}"
    why = f": {phrases.one_line(question.reason)}" if question.reason else ""
    return f"{answer(tx, question)}{by}{at}{why}"


def answer(tx: Transaction, question: Question) -> str:
    """What was said to a question, or what else became of it."""
    given = questions.answer_of(tx, question)
    match question.status, question.kind:
        case QuestionStatus.ANSWERED, QuestionKind.STEP_IN_DOUBT if isinstance(given, dict):
            what = _VERDICTS.get(str(given.get("verdict")), "answered")
            what += f" and returned {phrases.shown(given['result'])}" if given.get("result") is not None else ""
            return what + (", to run without proof that its old worker is dead" if question.anyway else "")
        case QuestionStatus.ANSWERED, _:
            return f"answered {phrases.shown(given)}"
        case _:
            return str(question.status)


def settled(tx: Transaction, task_id: str) -> SettledCalls:
    """The calls of an ended task that somebody settled."""
    told = events.of_kind(tx, task_id, EventKind.CALL_SETTLED)
    return SettledCalls({(one["key"], one["try_number"]): Settled(one["by"], one["reason"]) for one in told})


def ended_by(tx: Transaction, task: Task) -> str:
    """Who ended a task that did not end by itself, or the one above it that took it along; "" when nobody did.

    The error of an agent tells nothing of it.
    """
    error = tasks.read_error(tx, task.error) if task.status.is_terminal else None
    if error is None or (task.status is not TaskStatus.CANCELLED and error.type not in ends.NOT_RESUMED):
        return ""
    by = str(error.attributes.get("by") or "")
    if by or task.parent_task_id is None:
        return by
    parent = tasks.get(tx, task.parent_task_id)
    # Only what ended in the same commit bears the same revision.
    ended_with_it = parent.status.is_terminal and parent.revision == task.revision
    return ended_by(tx, parent) if ended_with_it else ""


def cancelled_by(tx: Transaction, question: Question) -> str:
    """Who cancelled a question by ending its task; "" where nobody did, or it was out of use before."""
    if question.status is not QuestionStatus.CANCELLED:
        return ""
    task = tasks.get(tx, question.task_id)
    return ended_by(tx, task) if task.finished_at == question.answered_at else ""


def people_asked(tx: Transaction, task_id: str, *, most: int = 1000) -> tuple[Question, ...]:
    """The open questions that are all a task and everything below it wait for; none while a machine can go on.

    Raises NotFound.
    """
    found: dict[str, Question] = {}
    todo, seen = [task_id], 0
    while todo and seen < most:
        seen += 1
        task = tasks.get(tx, todo.pop())
        if task.status.is_terminal and task.id != task_id:
            continue
        asked = _asked(tx, task)
        if asked is None:
            return ()
        own, below = asked
        found.update((one.id, one) for one in own)
        todo += below
    return () if todo else tuple(found.values())


def open_questions(tx: Transaction, task: Task) -> list[Question]:
    """All open questions of a task, oldest first, however many came after them."""
    return [one for one in reversed(questions.of_task(tx, task.id)) if one.status is QuestionStatus.OPEN]


def _asked(tx: Transaction, task: Task) -> tuple[list[Question], list[str]] | None:
    """The open questions of a task and the children it waits for; None when it can go on without a person."""
    if task.status is TaskStatus.INTERRUPTED:
        own = [one for one in open_questions(tx, task) if one.kind is QuestionKind.RESUME]
        return (own, []) if own else None
    if task.status is not TaskStatus.WAITING:
        return None
    asked: list[Question] = []
    below: list[str] = []
    for wait in task.waiting_for:
        if wait.kind not in (WaitKind.CHILDREN, WaitKind.QUESTION) or tasks.has_happened(tx, task.id, wait):
            return None
        if wait.kind is WaitKind.CHILDREN:
            below += wait.keys
        else:
            asked += [questions.get(tx, key) for key in wait.keys]
    return asked, below
