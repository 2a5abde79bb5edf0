"""Whether whoever held a call may still be inside it, and what became of the call meanwhile.

"It did not happen, run it" was true when it was said. A process that was only frozen may have woken since, and gone
on in the middle of the call. So the answer acts only once that process is known to be dead, or has told itself that
the call has ended; and if that was not so yet when the answer was given, it counts no longer. Its last word about the
call decides in any case.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from perdure.model.instance import Instance
from perdure.model.question import Question
from perdure.model.task import Task, Wait, WaitKind
from perdure.runtime.until import Until, set_over
from perdure.states import InstanceStatus
from perdure.store import effects, instances, last_words, questions, steps, tasks
from perdure.store.database import Transaction
from perdure.store.last_words import LastWord

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

_LOOK_AGAIN_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Dead:
    """Nobody can be inside the call any more; `word` is what its holder said at the end, if anything.

    `order` is where that came among the answers, which no clock decides; None: after all of them.
    `anyway`: a person said not to wait for proof.
    """

    order: int | None
    word: LastWord | None
    anyway: bool = False

    def came_before(self, question: Question) -> bool:
        """Whether nobody was inside the call any more when this was answered."""
        return self.order is not None and question.answered_order is not None and self.order < question.answered_order


async def look(attempt: Attempt, key: str, held_by: int) -> Dead | None:
    """Whether the attempt that held the call is known to be out of it; None while it may still be inside."""
    journal, task_id, in_flight = attempt.journal, attempt.task.id, attempt.host.in_flight
    owner = await journal.read(steps.owner, task_id, held_by)
    if owner is not None and owner.instance_id == attempt.host.instance_id:
        if in_flight.holds(task_id, key):
            return None
        word = await in_flight.word(task_id, key)
        if word is None or word.attempt != held_by:
            # Told already, with those of an identity of this process that was given up meanwhile.
            word = await journal.read(last_words.last, task_id, key, held_by)
        return Dead(0 if word is None else word.order, word)
    word = await journal.read(last_words.last, task_id, key, held_by)
    if owner is not None and owner.status is not None and owner.status != InstanceStatus.STOPPED:
        # It lives, and has told how the call ended once nobody was inside any more: it has let go of the task.
        return None if word is None else Dead(word.order, word)
    # One that is no more on record was dead before anybody was asked; of one whose end has no place nothing is known.
    return Dead(0 if owner is None or owner.status is None else owner.stopped_order, word)


async def until_dead(attempt: Attempt, key: str, held_by: int, question: Question | None) -> Dead:
    """Wait until nobody can be inside the call any more, or a person says not to wait."""
    journal = attempt.journal
    while True:
        found = await look(attempt, key, held_by)
        if found is not None:
            return found
        if question is not None and (await journal.read(questions.get, question.id)).anyway:
            return Dead(0, None, anyway=True)
        owner = await journal.read(steps.owner, attempt.task.id, held_by)
        assert owner is not None
        keys = (tasks.DEAD + owner.instance_id, *(() if question is None else (question.id,)))
        clock = journal.store.clock
        until = Until.after(clock, _LOOK_AGAIN_MS)
        wait = Wait(WaitKind.TIMER, keys, key, until.wall_ms)
        with until.timer(clock) as over:
            if owner.instance_id != attempt.host.instance_id:
                await attempt.waits.until(wait, or_done=over)
                continue
            # In a thread of this very process, which may hang: its return ends the wait, and so does a person's word.
            returned = asyncio.create_task(attempt.host.in_flight.until_returned(attempt.task.id, key))
            returned.add_done_callback(partial(set_over, over))
            try:
                await attempt.waits.until(wait, or_done=over)
            finally:
                returned.cancel()


def held_up(tx: Transaction, task: Task) -> list[tuple[Question, Instance]]:
    """Stored answers "it did not happen, run it", each with the worker that held the call and may still be inside it.

    But for those that an attempt waits with already: that has its own clause.
    """
    doubts = {key: index for index, _, key in effects.left_in_doubt(tx, task)}
    waits = {wait.step_key for wait in task.waiting_for if any(key.startswith(tasks.DEAD) for key in wait.keys)}
    found = []
    for question in questions.of_task(tx, task.id) if doubts.keys() - waits else ():
        key = question.step_key
        if key not in doubts or key in waits or not questions.is_to_run(tx, question):
            continue
        held_by = steps.at_index(tx, task.id, doubts[key]).attempt
        owner = steps.owner(tx, task.id, held_by)
        # The process that holds the task now knows itself whether the call is still inside.
        is_own = task.execution_id is not None and owner is not None and owner.instance_id == task.instance_id
        has_told = last_words.last(tx, task.id, key, held_by) is not None
        if owner is not None and owner.status is not None and not is_own and not has_told:
            found.append((question, instances.get(tx, owner.instance_id)))
    return found
