"""The record of one attempt: what was recorded before it, what it adds, and the proof that it may.

Every write to the task carries the fence; the content of an artifact, which is no task's own, does not need it. A store
that can no longer be written to, or a lost lease, ends the attempt by cancellation, which agent code cannot mistake for
an error of its own.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import structs

from perdure import codec
from perdure.ambient import Scope
from perdure.errors import AmbiguousStep, RefusedBySchema, StoreBusy, StoreError
from perdure.model.step import Step
from perdure.model.task import Claim, Fence
from perdure.policy.risk import Risk, highest
from perdure.runtime.alike import Alike, open_already
from perdure.runtime.branches import Beside, Branch, Branches
from perdure.runtime.call import Call
from perdure.store import Store, Transaction, admission, aio, outcomes, steps, traces
from perdure.store.messages import ResumePoint
from perdure.store.sessions import check_id
from perdure.trace import Occurrences, Records, call_key, named_key, scope_of

P = ParamSpec("P")
T = TypeVar("T")


class Journal:
    """Reads and writes one task's trace for one attempt."""

    def __init__(self, store: Store, claim: Claim, *, on_store_error: Callable[[StoreError], None]) -> None:
        self.store = store
        self.task = claim.task
        self.fence: Fence = claim.fence
        self.records = Records()
        self.has_history = False  # there are records, so that a call may be one of them, or none of them by mistake
        self.message_keys: frozenset[str] = frozenset()
        self.may_have_children = False
        self.harmless: set[str] = set()  # children that have ended and done nothing dangerous
        self.risk_seen = Risk.parse(claim.task.risk_seen)
        self.answered = 0  # calls that have come to their records
        self._until_answer: list[asyncio.Future[None]] = []
        self.last_seq = claim.task.event_seq
        self.known_steps = claim.task.step_count  # so many the task had, as far as this attempt has heard
        # As the last write of a step left it; unknown once something else of the attempt was written.
        self._place = steps.Place(claim.task.n, claim.task.event_seq, claim.task.step_count, claim.task.attempt)
        self._has_run_live = claim.task.step_count <= 1
        self._occurrences = Occurrences()
        self._has_gone_on = False
        self.branches = Branches()
        self.in_order = asyncio.Lock()  # held while a state is saved, so that a later one stays the newer
        self._open_alike: dict[str, int] = defaultdict(int)  # calls that are `alone`, by their keys but for the number
        self._open_keyed: dict[str, dict[str, tuple[str, str]]] = {}  # by place, what each open key is of
        self._keyed: dict[str, str] = {}  # by place, the name of the calls with this key
        # By the call around them: who made the first call, whether others make some, and those that look alike.
        self._callers: dict[str, weakref.ref[Any]] = {}
        self._shared: set[str] = set()
        self._alike: dict[str, dict[tuple[str, str], Alike]] = defaultdict(dict)
        self._running: dict[str, asyncio.Future[None] | None] = {}  # a future once somebody waits for the call
        self._made_in: dict[str, Scope] = {}  # where each of these was made
        # Writes under way of calls above low risk, and of those inside others.
        self._writing: dict[str, asyncio.Future[Any]] = {}
        self._on_store_error = on_store_error

    async def load(self, trace: traces.Trace | None = None) -> None:
        """Read the history in one query, unless it was read already. A first attempt has none.

        Raises Damaged when it cannot be read, and Refused when it is too long to be replayed.
        """
        if self.task.attempt <= 1:
            return
        # From where a person said to begin: what lies before may be what could not be read.
        first = self.task.replay_from
        if trace is None:
            trace = await aio.read(self.store, traces.read, self.task.id, from_index=first)
        self.records = Records(trace.steps, replay_from=first)
        self.has_history = len(self.records) > 0
        self.message_keys = trace.message_keys
        self.may_have_children = first > 0 or any(step.child_task_id is not None for step in trace.steps)

    async def write(
        self, operation: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a write. A busy store is asked again; any other store error ends the attempt.

        But for RefusedBySchema: what was to be written is at fault, and whoever gave it is told.
        """
        self._place.n = 0  # What was written may take numbers that the next step would think free.
        return await self._written(partial(aio.submit, self.store, operation, *args, **kwargs))

    def _written(self, submit: Callable[[], asyncio.Future[T]]) -> Awaitable[T]:
        """Begin a write now, before anybody awaits it: what the caller does meanwhile takes no time from it."""
        return self._until_done(submit(), submit)

    async def _until_done(self, writing: asyncio.Future[T], submit: Callable[[], asyncio.Future[T]]) -> T:
        while True:
            try:
                return await writing
            except StoreBusy:
                await asyncio.sleep(aio.BUSY_AGAIN_S)
                writing = submit()
            except RefusedBySchema:
                raise
            except StoreError as error:
                raise self._ended_by(error) from error

    async def write_softly(
        self, operation: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like `write` for what may be lost with the power: it is on disk with the next durable write."""
        self._place.n = 0
        try:
            return await aio.call_softly(self.store, operation, *args, **kwargs)
        except RefusedBySchema:
            raise
        except StoreError as error:
            raise self._ended_by(error) from error

    async def read(
        self, operation: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a reading operation. A busy store is asked again; any other store error ends the attempt."""
        while True:
            try:
                return await aio.read(self.store, operation, *args, **kwargs)
            except StoreBusy:
                await asyncio.sleep(aio.BUSY_AGAIN_S)
            except StoreError as error:
                raise self._ended_by(error) from error

    def forget(self) -> None:
        """The attempt has ended: whoever still writes is not heard any more."""
        self._on_store_error = _nobody_hears

    def _ended_by(self, error: StoreError) -> asyncio.CancelledError:
        self._on_store_error(error)
        return asyncio.CancelledError(str(error))

    # -- keys -------------------------------------------------------------------------------

    def key_of(self, call: Call, body: bytes, *, parent: str, branch: bytes | None = None) -> str:
        """The key of a call. Raises AmbiguousStep when a replay could not tell it from another one.

        A harmless one without input, made in a branch, is told from its like by what the `branch` has called before. A
        dangerous one, or one with a secret, is refused where that could not be trusted.
        """
        is_of_branch = bool(branch) and not (call.input or call.key or call.is_dangerous)
        digest = codec.digest(body + (branch or b"") if is_of_branch else body)
        if call.is_dangerous or call.secrets:
            alike = self._alike[parent].setdefault((call.name, call.key or digest), Alike())
            hidden = call.hidden(body) if call.is_dangerous else (call.secrets,)
            alike.add(call, (digest, *hidden), are_shared=parent in self._shared)
        if call.key is None:
            return self._key_by_input(call, digest, parent)
        check_id(call.key, "key")
        place = f"{parent}@{call.key}"
        key = named_key(parent, call.key, self._occurrences.number(parent, "", place))
        if (name := self._keyed.setdefault(place, call.name)) != call.name:
            self._occurrences.take_back(parent, "", place)
            raise AmbiguousStep(
                f"key {call.key!r} names a call of {name} already, and {call.name} would be given what that returned. "
                f"Give each a key of its own.",
                field="key",
            )
        others = self._open_keyed.get(place, {}).values()
        if any(one != (call.name, digest) for one in others) and not self._is_known(key):
            self._occurrences.take_back(parent, "", place)
            raise AmbiguousStep(
                f"key {call.key!r} names another call that is still open: after a restart their results could be "
                f"swapped. Give each call a key of its own.",
                field="key",
            )
        return key

    def _key_by_input(self, call: Call, digest: str, parent: str) -> str:
        key = call_key(parent, call.name, digest, self._occurrences.number(parent, call.name, digest))
        # At the first run only for questions: later one may be asked again that its branch had given up.
        is_refused = call.is_alone and (not call.input or self.task.attempt <= 1)
        if is_refused and self._open_alike[_unnumbered(key)] > 0 and not self._is_known(key):
            self._occurrences.take_back(parent, call.name, digest)
            raise open_already(call)
        return key

    def note_caller(self, caller: object, parent: str) -> None:
        """An asyncio task, or a thread, makes calls inside the call with the key `parent`."""
        first = self._callers.get(parent)
        if first is None:
            self._callers[parent] = weakref.ref(caller)
        elif first() is not caller:
            self._shared.add(parent)

    def _is_known(self, key: str) -> bool:
        """Whether this is no second call beside an open one, but that very one, or one this attempt has had: made anew.

        Not one of an earlier attempt: a `key=` names neither tool nor input, and its record may be of the other call.
        """
        record = self.records.find(key)
        return self.is_running(key) or (record is not None and record.attempt == self.task.attempt)

    def open(self, call: Call, key: str, body: bytes, *, scope: Scope) -> None:
        """A call begins to run: until `close`, a second one that a replay could not tell from it is refused."""
        parent = scope.parent_key
        self._running[key] = None
        self._made_in[key] = scope
        if parent:
            self.records.open(key, parent)
        if call.key is not None:
            self._open_keyed.setdefault(f"{parent}@{call.key}", {})[key] = (call.name, codec.digest(body))
        elif call.is_alone:
            self._open_alike[_unnumbered(key)] += 1

    def close(self, call: Call, key: str, *, scope: Scope) -> None:
        """The call has ended, in whatever way: what was made inside it, nobody will come to.

        Unless it was made inside a call that was cut off: that may be made anew already, and come to it.
        """
        parent = scope.parent_key
        self._made_in.pop(key, None)
        self._alike.pop(key, None)
        if not scope.is_cut_off:
            self.records.use_inside(key)
        if (running := self._running.pop(key, None)) is not None:
            running.set_result(None)
        if call.key is not None:
            self._open_keyed[f"{parent}@{call.key}"].pop(key, None)
        elif call.is_alone:
            self._open_alike[_unnumbered(key)] -= 1

    @contextmanager
    def beside(self, saver: Branch) -> Iterator[Beside]:
        """The keys of calls of which the state cannot tell that the agent has now, in this branch, and saves inside.

        To those of other branches come the calls that run, and those on record that this attempt has not come to yet.
        Should saving fail, the next state tells of what this one would have told of.
        """
        with self.branches.beside(saver) as (going_on, unsure, sure):
            yield Beside(sorted({*self.open_keys, *self.records.to_come, *going_on}), unsure, sure)

    def note_made(self, call: Call, key: str, branch: asyncio.Task[Any] | None) -> None:
        """A call at the top has come to its end. Of the agent's own, only what is not harmless to make again counts."""
        if branch is not None or call.is_dangerous or self.records.has_dangerous_inside(key):
            self.branches.note(branch, key)

    def told(self, key: str, branch: Branch | None) -> None:
        """The code has come to this message at the top."""
        self.records.use(key)
        if branch is not None and branch is not self.branches.main:
            branch.message_keys.append(key)

    def is_another(self, key: str) -> None:
        """A person has said of this call, which equals one that the checkpoint may not tell of, that it is another."""
        if known := self.records.is_another(key):
            self.branches.settle(known)

    @property
    def open_keys(self) -> Collection[str]:
        """The keys of calls that run, but for those that were left running inside a call that was cut off."""
        return {key for key, scope in self._made_in.items() if not scope.is_cut_off}

    def is_running(self, key: str) -> bool:
        """Whether this very call runs, or its record is on its way: the call around it was cut off and begins anew."""
        return key in self._running or key in self._writing

    async def until_known(self, key: str) -> None:
        """Wait until the attempt knows what this very call has come to."""
        while self.is_running(key):
            if key in self._writing:
                await asyncio.wait({self._writing[key]})
                continue
            running = self._running[key]
            if running is None:
                running = self._running[key] = asyncio.get_running_loop().create_future()
            await asyncio.wait({running})

    async def until_written(self) -> None:
        """Wait for what is still being written of calls whose callers are gone."""
        while self._writing:
            await asyncio.wait(self._writing.values())

    def restart(self, key: str) -> None:
        """The call with this key begins anew: the calls it makes are found again from the first."""
        self._occurrences.restart(key)
        self._callers.pop(key, None)
        self._shared.discard(key)
        self._alike.pop(key, None)
        if self.records.begin_anew(key):
            self.has_history = True  # One that is not among those it had made may be one of them, made otherwise.

    def go_on_from(self, point: ResumePoint) -> None:
        """The agent goes on from a checkpoint: calls equal to earlier ones are new ones from here on.

        Once: what it has called since is not before it, however often it looks at the checkpoint.
        """
        if self._has_gone_on:
            return
        self._has_gone_on = True
        self.records.leave_open(point.open_keys)
        self.has_history = self.has_history or bool(point.open_keys)  # Of such a call there may be no record yet.
        before = self.records.use_before(point.at_step, unsure=point.unsure_keys)
        self._occurrences.go_on_after([*before, *point.told])

    # -- replay -----------------------------------------------------------------------------

    def used(self, key: str) -> None:
        """The code has come to this call: its record, if there is one, no longer lies unused."""
        if self.records.find(key) is not None:
            self.answered += 1
        self.records.use(key)
        while self._until_answer:
            waiting = self._until_answer.pop()
            if not waiting.done():
                waiting.set_result(None)

    def next_answer(self) -> asyncio.Future[None]:
        """Done as soon as the code has come to another call: fewer records may lie unused then."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until_answer.append(waiting)
        return waiting

    @property
    def is_live(self) -> bool:
        """Whether the attempt has gone beyond its records."""
        return self._has_run_live or self.records.is_exhausted

    def runs_live(self) -> None:
        """A call is made that no record answers."""
        self._has_run_live = True

    # -- writing ----------------------------------------------------------------------------

    def step(
        self,
        call: Call,
        *,
        key: str,
        body: bytes,
        try_number: int | None = None,
        token: str | None = None,
        child_task_id: str | None = None,
    ) -> steps.NewStep:
        """A call as the store takes it."""
        if call.risk is not self.risk_seen:
            self.risk_seen = highest(self.risk_seen, call.risk)
        return steps.NewStep(
            kind=call.kind,
            name=call.name,
            key=key,
            risk=call.risk,
            payload=codec.pack(body),
            risk_seen=self.risk_seen,
            try_number=self.try_of(None) if try_number is None else try_number,
            reconcilable=call.reconcile is not None and call.risk is not Risk.CRITICAL,
            token=token,
            child_task_id=child_task_id,
        )

    async def begin(self, step: steps.NewStep, *, question_id: str | None = None, counts: bool = False) -> int:
        """Make a call's intent durable; at low risk it is only there for a budget to count, and may be lost."""
        put: Callable[[], Awaitable[steps.Written]]
        if counts and step.risk == Risk.LOW:
            begin = partial(steps.begin, question_id=question_id, counts=counts)
            put = partial(self.write_softly, begin, self.fence, step)
        else:
            submit = partial(aio.submit, self.store, steps.begin, self.fence, step, place=self._place)
            put = partial(self._written, partial(submit, question_id=question_id, counts=counts))
        return await self._index_of(self._put(step, None, put))

    async def admit_child(self, step: steps.NewStep, new: admission.NewTask, *, question_id: str | None) -> str:
        """Begin the call of an agent, and use up the answer that allows it. Returns the child's id. Raises Refused."""
        # Followed: the task is not to end before a child that is just being admitted.
        return await self.followed(step.key, self._admit_child(step, new, question_id))

    async def _admit_child(self, step: steps.NewStep, new: admission.NewTask, question_id: str | None) -> str:
        began_ms = self.store.clock.now_ms()
        admit = partial(admission.admit_children, question_id=question_id)
        admitted = await self.write(admit, self.fence, [(step, new)])
        child_id = admitted.tasks[0].id
        if scope_of(step.key) and admitted.step_indexes:  # Else the call around it cannot come to it a second time.
            (index,) = admitted.step_indexes
            self._keep(steps.with_child(step, child_id), None, index, began_ms)
        return child_id

    def complete(self, step: steps.NewStep, result: steps.Result, *, begun: bool) -> Awaitable[int]:
        """Make a call's outcome durable. Outside other calls it is on its way at once, before it is awaited."""
        if not begun and outcomes.is_plain(result, self._place):
            outcome = outcomes.Outcome(self.fence, step, result, self._place)
            put = partial(self._written, partial(aio.submit_joint, self.store, outcomes.RECORD, outcome))
        else:
            complete = partial(aio.submit, self.store, steps.complete, self.fence, step, result, begun=begun)
            put = partial(self._written, partial(complete, place=self._place))
        return self._index_of(self._put(step, result, put))

    async def _index_of(self, writing: Awaitable[steps.Written]) -> int:
        index, self.last_seq = await writing
        self.known_steps = max(self.known_steps, index + 1)
        return index

    def _put(
        self, step: steps.NewStep, result: steps.Result | None, put: Callable[[], Awaitable[steps.Written]]
    ) -> Awaitable[steps.Written]:
        if scope_of(step.key):
            return self.followed(step.key, self._put_and_keep(step, result, put))
        return put() if step.risk == Risk.LOW else self.followed(step.key, put())

    def followed(self, key: str, writing: Awaitable[T]) -> Awaitable[T]:
        """Write of a call in a task of its own, also when whoever waits for it is cancelled.

        Until it is written, nobody looks what became of the call (`until_known`), nor how the task ends.
        """
        task = asyncio.ensure_future(writing)
        self._writing[key] = task
        task.add_done_callback(lambda done: self._has_written(key, done))
        return asyncio.shield(task)

    async def _put_and_keep(
        self, step: steps.NewStep, result: steps.Result | None, put: Callable[[], Awaitable[steps.Written]]
    ) -> steps.Written:
        """Write a step inside another call, which finds it again should it run a second time in this attempt."""
        began_ms = self.store.clock.now_ms()
        written = await put()
        self._keep(step, result, written.step_index, began_ms)
        return written

    def _keep(self, step: steps.NewStep, result: steps.Result | None, index: int, began_ms: int) -> None:
        attempt = self.task.attempt
        self.records.add(steps.as_record(step, result, self.task.id, index, attempt=attempt, began_ms=began_ms))

    async def take_over(self, step: steps.NewStep, *, question_id: str | None) -> None:
        """This attempt holds from here on a call that another one had begun; the answer that allows it is used up."""
        await self.followed(step.key, self._take_over(step, question_id))

    async def _take_over(self, step: steps.NewStep, question_id: str | None) -> None:
        began_ms = self.store.clock.now_ms()
        await self.write(steps.begin_again, self.fence, step.key, step.try_number, question_id=question_id)
        record = self.records.find(step.key)
        if record is not None:  # Found also should the call around it run again.
            self.records.add(structs.replace(record, attempt=self.task.attempt, timestamp=began_ms, retried_at=None))

    def _has_written(self, key: str, done: asyncio.Future[Any]) -> None:
        if self._writing.get(key) is done:
            del self._writing[key]
        if not done.cancelled():
            done.exception()  # Looked at here too: whoever made the call may be gone.

    async def raise_risk(self, record: Step, call: Call, body: bytes) -> Step:
        """Keep a step that is open as what its call is declared to be by now, where that is more dangerous."""
        if call.risk <= Risk.parse(record.risk or Risk.HIGH):
            return record
        token = self.token_for(record)
        step = self.step(call, key=record.key or "", body=body, try_number=record.try_number, token=token)
        await self.write(steps.raise_risk, self.fence, step)
        record = structs.replace(record, risk=str(call.risk), token=token)
        self.records.add(record)
        return record

    def try_of(self, record: Step | None) -> int:
        """The number of the try that a call begins now.

        Where a person had the task begin anew, earlier tries may lie unread before that: fewer than records do.
        """
        if record is None:
            return self.task.replay_from
        return record.try_number + (record.outcome is not None)

    def token_for(self, record: Step | None) -> str:
        """A call's idempotency token: the same in every attempt."""
        return record.token if record is not None and record.token else self.store.ids.token()


def _unnumbered(key: str) -> str:
    return key.rpartition("#")[0]


def _nobody_hears(_error: StoreError) -> None:
    return None


def unpacked(record: Step, annotation: Any) -> Any:
    """The value a record holds, of the type it had."""
    assert record.output is not None, record.key
    return codec.decode(record.output, annotation=annotation)
