"""Calls that wait for something outside the agent: a child task, a timer, a delivery, a person's answer.

Each waits as a row, so it goes on after a restart, and gives its permit back meanwhile. What a call that was cut off
has left waiting, in a thread say, waits no more and takes nothing: the agent may be waiting for the very same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure import ambient, codec
from perdure.definitions import AgentCall, bind_arguments, instant_ms, returns
from perdure.errors import (
    BadDelivery,
    Error,
    Expired,
    NotFound,
    NotSerializable,
    Refused,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
)
from perdure.model.question import QuestionKind
from perdure.model.step import Step, StepKind
from perdure.model.task import Lane, Mode, Wait, WaitKind
from perdure.runtime import answers, calls, live
from perdure.runtime.asking import until_settled
from perdure.runtime.call import Call
from perdure.runtime.running import heard
from perdure.runtime.until import Until
from perdure.states import QuestionStatus, TaskStatus
from perdure.store import admission, instances, messages, payloads, questions, steps, task_lists
from perdure.store.database import Transaction

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

_LONGEST_KEY_BYTES = 512


async def run_agent(attempt: Attempt, agent: AgentCall) -> Any:
    """Run an agent as a child task and take its outcome."""
    arguments = bind_arguments(agent.definition.fn, agent.args, agent.kwargs)
    call = Call(
        kind=StepKind.CHILD,
        name=agent.definition.name,
        fn=agent.definition.fn,
        input=arguments,
        agent_risk=agent.definition.risk,
        key=agent.options.key,
        annotation=returns(agent.definition.fn),
        tells_apart=False,
    )

    async def run(attempt: Attempt, call: Call, *, key: str, body: bytes, record: Step | None) -> Any:
        step = attempt.journal.step(call, key=key, body=body, try_number=attempt.journal.try_of(record))
        child_id = record.child_task_id if record is not None and record.is_open else None
        if child_id is None:
            ambient.refuse_cut_off()
            new = new_task(agent, key=_child_key(step), secrets=call.secrets)
            attempt.journal.runs_live()
            attempt.journal.may_have_children = True
            question_id = attempt.allowed.pop(key, None)
            try:
                child_id = await attempt.journal.admit_child(step, new, question_id=question_id)
            except Refused as refused:
                # On record, so that an agent that goes on without this child does so on every replay.
                await live.fail_call(attempt, call, step, refused, begun=False, question_id=question_id)
        step = steps.with_child(step, child_id)
        await _warn_unmanned(attempt, agent, child_id)
        await attempt.waits.until(Wait(WaitKind.CHILDREN, (child_id,), key), inside=ambient.scope())
        return await _take_outcome(attempt, call, step, child_id)

    return await calls.perform(attempt, call, run)


async def sleep(attempt: Attempt, duration_s: float) -> None:
    """Wait for some time, also across restarts."""
    call = Call(kind=StepKind.TIMER, name="sleep", fn=_nothing, input={"seconds": duration_s}, tells_apart=False)

    async def run(
        attempt: Attempt,
        call: Call,
        *,
        key: str,
        body: bytes,  # noqa: ARG001  # A timer's own moment is part of what is recorded.
        record: Step | None,
    ) -> Any:
        step, until = await _begin_until(attempt, call, key=key, record=record, timeout_s=duration_s)
        with until.timer(attempt.journal.store.clock) as over:
            wait = Wait(WaitKind.TIMER, (), key, until.wall_ms)
            await attempt.waits.until(wait, or_done=over, inside=ambient.scope())
        return await live.complete_call(attempt, call, step, None, begun=True)

    await calls.perform(attempt, call, run)


async def receive(attempt: Attempt, name: str, *, timeout_s: float | None, annotation: Any) -> Any:
    """The oldest delivery under a name, also one that came first.

    Raises TimeoutError after `timeout_s`, and BadDelivery for one that is not what the annotation wants.
    """
    answers.check_type(annotation, "type")
    call = Call(
        kind=StepKind.RECEIVE,
        name="receive",
        fn=_nothing,
        input={"name": name},
        annotation=annotation,
        tells_apart=False,
    )

    async def run(attempt: Attempt, call: Call, *, key: str, body: bytes, record: Step | None) -> Any:
        until: Until | None = None
        inside = ambient.scope()
        clock = attempt.journal.store.clock
        if timeout_s is None:
            step = attempt.journal.step(call, key=key, body=body, try_number=attempt.journal.try_of(record))
            begun = False
        else:
            step, until = await _begin_until(attempt, call, key=key, record=record, timeout_s=timeout_s)
            begun = True
        while True:
            unread = await attempt.journal.read(messages.oldest_unread, attempt.task.id, name)
            ambient.refuse_cut_off()
            if unread is not None:
                try:
                    return await _take_delivery(attempt, call, step, name, unread, begun=begun)
                except NotFound:
                    continue  # Another receive of this task was faster.
            if until is None:
                await attempt.waits.until(Wait(WaitKind.RECEIVE, (name,), key), inside=inside)
                continue
            if until.left_ms(clock) == 0:
                late = TimeoutError(f"nothing was sent under {name!r} within {timeout_s:g} s")
                await live.fail_call(attempt, call, step, late, begun=begun)
            with until.timer(clock) as over:
                wait = Wait(WaitKind.RECEIVE, (name,), key, until.wall_ms)
                await attempt.waits.until(wait, or_done=over, inside=inside)

    return await calls.perform(attempt, call, run)


async def _take_delivery(
    attempt: Attempt, call: Call, step: steps.NewStep, name: str, unread: messages.Unread, *, begun: bool
) -> Any:
    """Take a delivery in the commit that ends its step. Raises BadDelivery, and NotFound when another step has it."""
    value = codec.decode(unread.payload, annotation=call.annotation)
    if not answers.is_made(value, call.annotation):
        # Taken all the same: left unread, it would be what each later receive finds first, for ever.
        sent = codec.decode(unread.payload)
        why = answers.programs_misfit(sent, call.annotation, secrets=call.secrets)
        bad = BadDelivery(f"what was sent under {name!r} must be {why}", name=name, payload=sent)
        await live.fail_call(attempt, call, step, bad, begun=begun, delivery=unread.n)
    result = steps.Result(completed=True, output=codec.pack(unread.payload), delivery=unread.n)
    taking = asyncio.ensure_future(attempt.journal.complete(step, result, begun=begun))
    taking.add_done_callback(heard)
    try:
        await asyncio.shield(taking)
        ambient.refuse_cut_off()  # Meanwhile, where a thread waits for it, which is not cancelled.
    except asyncio.CancelledError:
        # Of two receives the one that comes second may be cancelled, and loses nothing that it had just taken.
        if not attempt.is_to_end:
            await attempt.journal.followed(step.key, _give_back(attempt, taking, step, unread.n))
        raise
    return value


async def _give_back(attempt: Attempt, taking: asyncio.Future[int], step: steps.NewStep, delivery: int) -> None:
    journal = attempt.journal
    await asyncio.wait({taking})
    if taking.cancelled() or taking.exception() is not None:
        return
    await journal.write(steps.give_back, journal.fence, step, taking.result(), delivery=delivery)
    journal.records.run_anew(taking.result(), now_ms=journal.store.clock.now_ms())
    attempt.look_soon()


async def ask(attempt: Attempt, question: str, *, to: str, expires_s: float | None, annotation: Any) -> Any:
    """A person's answer. Raises Expired when nobody gave one in time."""
    answers.check_type(annotation, "type")
    call = Call(
        kind=StepKind.ANSWER,
        name="ask",
        fn=_nothing,
        input={"question": question, "to": to},
        annotation=annotation,
        to=to,
    )

    async def run(attempt: Attempt, call: Call, *, key: str, body: bytes, record: Step | None) -> Any:
        journal = attempt.journal
        step = journal.step(call, key=key, body=body, try_number=journal.try_of(record))
        expires_at = None if expires_s is None else journal.store.clock.now_ms() + int(expires_s * 1000)
        wanted = answers.type_word(annotation)
        made_of = answers.made_of(annotation)
        evidence = {"wants": wanted} | ({"made_of": made_of} if made_of else {})
        text = question
        while True:
            new = questions.NewQuestion(
                QuestionKind.ASK,
                codec.mask_text(text, call.secrets),
                step_key=key,
                to=codec.mask_text(to, call.secrets),
                evidence=codec.pack(codec.evidence(evidence)),
                digest=codec.digest(body),
                expires_at_ms=expires_at,
            )
            asked = await until_settled(attempt, new)
            if asked.status is not QuestionStatus.ANSWERED:
                unanswered = Expired(f"nobody answered {asked.id} in time: {question}")
                await live.fail_call(attempt, call, step, unanswered, begun=False, question_id=asked.id)
            value = await journal.read(_answer_of, asked.answer)
            if answers.person_may_say(value, annotation):
                return await live.complete_call(attempt, call, step, value, begun=False, question_id=asked.id)
            why = f"it wants {answers.persons_misfit(value, wanted, annotation, secrets=call.secrets)}"
            await journal.write(questions.void, journal.fence, asked.id, reason=why)
            text = f"{question} ({asked.id} was answered, but {why})"

    return await calls.perform(attempt, call, run)


def new_task(
    agent: AgentCall, *, key: str | None, lane: Lane = Lane.SUBAGENT, secrets: tuple[str, ...] = ()
) -> admission.NewTask:
    """An agent with its arguments as a task to admit, secrets masked.

    Raises NotSerializable with the path to what cannot be stored.
    """
    definition, options = agent.definition, agent.options
    try:
        prompt = codec.encode(bind_arguments(definition.fn, agent.args, agent.kwargs))
    except NotSerializable as refused:
        message = f"the arguments of {definition.name} cannot be stored: {refused}"
        raise NotSerializable(message, path=refused.path) from None
    if secrets:
        prompt = codec.mask(prompt, secrets)
    deadline_at = deadline_ms = None
    deadline = options.deadline if options.deadline is not None else definition.deadline_s
    if isinstance(deadline, int | float):
        deadline_ms = int(deadline * 1000)
    elif deadline is not None:
        deadline_at = instant_ms(deadline, "deadline")
    return admission.NewTask(
        agent=definition.name,
        version=definition.version,
        definition_hash=definition.definition_hash,
        prompt=codec.pack(prompt),
        work_digest=admission.work_digest(definition.name, prompt, item=options.item),
        key=key,
        mode=Mode.BACKGROUND if options.background else Mode.FOREGROUND,
        lane=lane,
        priority=options.priority,
        delay_ms=int(options.delay_s * 1000),
        deadline_at=deadline_at,
        deadline_ms=deadline_ms,
        risk=definition.risk,
        resume=definition.resume,
        budget=options.budget or definition.budget,
        tags={name: codec.mask_text(text, secrets) for name, text in options.tags.items()} if secrets else options.tags,
    )


def failure(task_id: str, status: TaskStatus, error: Error | None) -> TaskFailed:
    """Why a task has no result, as the error that whoever waits for it gets."""
    error = error or Error("Unknown", "no error was recorded")
    match status:
        case TaskStatus.TIMED_OUT:
            return TaskTimedOut(task_id, error)
        case TaskStatus.CANCELLED:
            return TaskCancelled(task_id, error)
        case _:
            return TaskFailed(task_id, error)


async def _warn_unmanned(attempt: Attempt, agent: AgentCall, child_id: str) -> None:
    """Say that nobody lives who could run a child. It is waited for all the same: somebody may yet start who does."""
    definition = agent.definition
    if attempt.host.has_agent(definition.name, definition.version):
        return
    lease_ms = attempt.host.settings.lease_s * 1000
    alive = await attempt.journal.read(instances.alive_with_agent, definition.name, definition.version)
    if any(attempt.journal.store.clock.now_ms() - one.heartbeat_at < lease_ms for one in alive):
        return
    known = await attempt.journal.read(task_lists.outcome, child_id)
    if known is None:
        attempt.host.tell_unmanned(attempt, definition.name)


async def _take_outcome(attempt: Attempt, call: Call, step: steps.NewStep, child_id: str) -> Any:
    outcome = await attempt.journal.read(task_lists.outcome, child_id)
    await attempt.spending.look(attempt.journal.read)  # What it used is of what its parent has, too.
    assert outcome is not None, child_id
    if outcome.status is not TaskStatus.COMPLETED:
        failed = failure(child_id, outcome.status, outcome.error)
        await live.fail_call(attempt, call, step, failed, begun=True)
    assert outcome.result is not None, child_id
    await attempt.journal.complete(step, steps.Result(completed=True, output=codec.pack(outcome.result)), begun=True)
    return codec.decode(outcome.result, annotation=call.annotation)


async def _begin_until(
    attempt: Attempt, call: Call, *, key: str, record: Step | None, timeout_s: float
) -> tuple[steps.NewStep, Until]:
    """A step that is on record with the moment until which it waits."""
    journal, clock = attempt.journal, attempt.journal.store.clock
    wait_ms, try_number = int(timeout_s * 1000), journal.try_of(record)
    if record is not None and record.is_open and record.payload is not None:
        known = codec.decode(codec.unpack(bytes(record.payload), lambda _hashes: {}))
        assert isinstance(known, Mapping), key
        until_ms = int(known["until_ms"])
        if clock.now_ms() >= record.timestamp:
            return journal.step(call, key=key, body=b"{}", try_number=try_number), Until.at(clock, until_ms)
        # It is earlier now than when this was begun: the clock was set back, and nobody knows how much of the wait is
        # over. It begins anew, so that it takes twice as long at most, and on record, so that it does so once.
        wait_ms, try_number = until_ms - record.timestamp, try_number + 1
    until = Until.after(clock, wait_ms)
    body = codec.evidence({**call.input, "until_ms": until.wall_ms})
    step = journal.step(call, key=key, body=body, try_number=try_number)
    journal.runs_live()
    await journal.begin(step)
    return step, until


def _child_key(step: steps.NewStep) -> str:
    """The key under which a child is admitted once, whatever the length of its step's key."""
    text = f"{step.key}~{step.try_number}"
    return text if len(text.encode()) <= _LONGEST_KEY_BYTES else f"{codec.digest(step.key.encode())}~{step.try_number}"


def _answer_of(tx: Transaction, answer: bytes | None) -> Any:
    return payloads.plain(tx, answer)


async def _nothing() -> None:
    return None
