"""Lives of tasks, told as facts: each write of the store, and what must be found afterwards wherever it was answered.

Ids and time are made from a seed, so that the same life in two databases has the same ids: one process may live it
and be struck, and another one knows what to look for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.errors import Error
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.task import Claim, Lane, Usage, Wait, WaitKind
from perdure.store import ends, events, instances, last_words, messages, questions, steps, tasks
from perdure.store.last_words import LastWord, WordKind
from perdure.store.waiters import ThreadWaiter
from tests.world import World, done, packed, timer

Fact = Callable[[World], bool]
Tell = Callable[[str, Fact], None]


def softly(world: World, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an operation whose commit the power may take, until the next durable one."""
    waiter: ThreadWaiter[Any] = ThreadWaiter()
    world.store.database.write_softly(lambda tx: operation(tx, *args, **kwargs), waiter)
    return waiter.wait()


def holds(fact: Fact, world: World) -> bool:
    """Whether a fact is found."""
    try:
        return fact(world)
    except LookupError:
        return False


def live_briefly(world: World, tell: Tell) -> None:
    """The hot writes, durable and soft, in the order of a usual task."""
    task = world.admit(key="one")
    tell("admitted", lambda w: w.task(task.id).id == task.id)
    worker = world.worker
    (claim,) = softly(
        world,
        tasks.claim,
        lane=Lane.SUBAGENT,
        instance=worker.n,
        instance_id=worker.id,
        generation=worker.generation,
        limit=1,
    )
    softly(world, instances.beat, worker.id, generation=worker.generation, held=[claim.execution_id])
    world.record(claim, "low", done(usage=Usage(10, 5, 0.5)))
    tell("low step", lambda w: outcome_of(w, claim, "low") == "completed")
    tell("claimed before it", lambda w: w.task(task.id).attempt >= 1)
    world.begin(claim, "high", risk="high")
    tell("intent", lambda w: outcome_of(w, claim, "high") in ("open", "completed"))
    softly(world, events.add_pulses, task.id, execution_id=claim.execution_id, after_seq=1, number=1, packed=b"J[]")
    world.end_step(claim, "high", risk="high")
    tell("outcome", lambda w: outcome_of(w, claim, "high") == "completed")
    world.store.call(messages.append, claim.fence, NewMessage("user", b'"' + b"x" * 9000 + b'"'), step_key="m")
    tell("message", lambda w: len(w.store.read(messages.listing, task.id)) == 1)
    world.store.call(messages.save_checkpoint, claim.fence, packed({"at": "x" * 3000}), step_key="c")
    tell("checkpoint", lambda w: w.task(task.id).checkpoint == 1)
    softly(world, tasks.wait, claim.fence, timer(world.clock.now_ms() + 1000))
    softly(world, tasks.restore, claim.fence)
    child = world.spawn(claim)
    tell("child", lambda w: w.task(child.id).parent_task_id == task.id)
    world.complete(world.claim(child.id))
    tell("child's end", lambda w: w.task(child.id).status == "completed")
    asked = world.ask(claim)
    tell("question", lambda w: w.store.read(questions.get, asked.id).id == asked.id)
    world.complete(claim, "r" * 5000)
    tell("completed", lambda w: w.task(task.id).status == "completed")


def live_in_every_way(world: World, tell: Tell) -> None:
    """The other writes: every verb, every question, every end."""
    live_briefly(world, tell)
    waiting = world.start(key="two")
    world.set_aside(waiting, Wait(WaitKind.RECEIVE, ("paid",)))
    tell("suspended", lambda w: "task_suspended" in w.kinds(waiting.task.id))
    world.store.call(
        messages.send, waiting.task.id, name="paid", key="evt", payload=packed({"amount": 5}), unread_limit=10
    )
    tell("delivered", lambda w: w.store.read(messages.oldest_unread, waiting.task.id, "paid") is not None)
    tell("woken", lambda w: w.task(waiting.task.id).status != "waiting")
    again = world.claim(waiting.task.id)
    world.store.call(tasks.release, again.fence, reason="a stop")
    tell("released", lambda w: w.kinds(waiting.task.id).count("task_released") == 1)
    third = world.claim(waiting.task.id)
    world.store.call(tasks.retry, third.fence, available_at=0, error=Error("ConnectionError", "reset"))
    tell("retried", lambda w: w.task(waiting.task.id).failures == 1)
    fourth = world.claim(waiting.task.id)
    world.begin(fourth, "doubt", risk="high")
    world.interrupt(fourth)
    tell("interrupted", lambda w: "task_interrupted" in w.kinds(waiting.task.id))
    word = LastWord(waiting.task.id, "doubt", 4, WordKind.COMPLETED, b'"r-1"', 1)
    world.store.call(last_words.tell, [word])
    assert world.store.read(last_words.last, waiting.task.id, "doubt", 4) == word
    tell("last word", lambda w: "call_ended_late" in w.kinds(waiting.task.id))
    assert world.recover(waiting.task.id) is not None
    tell("recovered", lambda w: "task_recovered" in w.kinds(waiting.task.id))
    fifth = world.claim(waiting.task.id)
    doubt = world.ask(fifth, QuestionKind.STEP_IN_DOUBT, step_key="doubt")
    world.store.call(questions.answer, doubt.id, by="ana", value=packed({"verdict": "not_happened"}))
    tell("answered", lambda w: w.store.read(questions.get, doubt.id).status == "answered")
    world.store.call(steps.begin_again, fifth.fence, "doubt", 0, question_id=doubt.id)
    tell("run again", lambda w: "call_run_again" in w.kinds(waiting.task.id))
    world.end_step(fifth, "doubt", risk="high")
    yes, no = (world.ask(fifth, QuestionKind.CALL, step_key=key, digest=key) for key in ("yes", "no"))
    world.store.call(questions.approve, yes.id, by="ana")
    tell("approved", lambda w: w.store.read(questions.get, yes.id).status == "approved")
    world.store.call(questions.deny, no.id, by="ana", reason="too much")
    tell("denied", lambda w: w.store.read(questions.get, no.id).status == "denied")
    world.store.call(questions.void, fifth.fence, yes.id, reason="other arguments")
    tell("voided", lambda w: w.store.read(questions.get, yes.id).spent_at is not None)
    world.fail(fifth)
    tell("failed", lambda w: w.task(waiting.task.id).status == "failed")
    _end_in_other_ways(world, tell)


def _end_in_other_ways(world: World, tell: Tell) -> None:
    late, parent = world.start(key="three", deadline_ms=1), world.start(key="four")
    world.clock.advance(10)
    assert world.store.call(ends.time_out, late.task.id)
    tell("timed out", lambda w: w.task(late.task.id).status == "timed_out")
    child = world.spawn(parent)
    assert world.store.call(ends.cancel, parent.task.id, reason="enough")
    tell("cancelled", lambda w: w.task(parent.task.id).status == "cancelled")
    tell("cancelled with it", lambda w: w.task(child.id).status == "cancelled")
    other = world.new_worker()
    tell("registered", lambda w: w.store.read(instances.get, other.id).id == other.id)
    lost = world.start(key="five", worker=other)
    world.crash(other)
    tell("orphaned", lambda w: w.task(lost.task.id).status in ("interrupted", "pending"))
    world.store.call(instances.mark_stopped, other.id)
    tell("stopped", lambda w: w.store.read(instances.get, other.id).status == "stopped")


def outcome_of(world: World, claim: Claim, key: str) -> str:
    """What became of a step: missing, open, completed or failed."""
    found = world.step(claim.task.id, key)
    return "missing" if found is None else found.outcome or "open"
