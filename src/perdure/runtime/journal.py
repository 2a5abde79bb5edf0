"""The record of one attempt: what was recorded before it, what it adds, and the proof that it may.

Every write carries the fence. A store that can no longer be written to, or a lost lease, ends the attempt by
cancellation, which agent code cannot mistake for an error of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from perdure import codec
from perdure.errors import AmbiguousStep, StoreError
from perdure.model.step import Note, Step
from perdure.model.task import Claim, Fence
from perdure.policy.risk import Risk, highest
from perdure.runtime.call import Call
from perdure.store import Store, Transaction, aio, steps
from perdure.trace import Occurrences, Records, call_key, named_key

P = ParamSpec("P")
T = TypeVar("T")


class Journal:
    """Reads and writes one task's trace for one attempt."""

    def __init__(self, store: Store, claim: Claim, *, on_store_error: Callable[[StoreError], None]) -> None:
        self.store = store
        self.task = claim.task
        self.fence: Fence = claim.fence
        self.records = Records()
        self.message_keys: frozenset[str] = frozenset()
        self.risk_seen = Risk.parse(claim.task.risk_seen)
        self.last_answer_ms = 0
        self.answered = 0
        self.last_seq = claim.task.event_seq
        self.is_live = claim.task.step_count <= 1
        self._occurrences = Occurrences()
        self._open_without_input: set[tuple[str, str]] = set()
        self._notes: list[Note] = []
        self._on_store_error = on_store_error

    async def load(self) -> None:
        """Read the history, in one query. A first attempt has none. Raises Damaged when it cannot be read."""
        if self.task.attempt <= 1:
            return
        trace = await aio.read(self.store, steps.trace, self.task.id)
        self.records = Records(trace.steps, replay_from=self.task.replay_from)
        self.message_keys = trace.message_keys
        self.is_live = self.records.is_exhausted

    async def write(
        self, operation: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a fenced write. A busy store is asked again; any other store error ends the attempt."""
        return await self._guard(aio.call_patiently(self.store, operation, *args, **kwargs))

    async def write_softly(
        self, operation: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like `write` for what may be lost with the power: it is on disk with the next durable write."""
        return await self._guard(aio.call_softly(self.store, operation, *args, **kwargs))

    async def read(
        self, operation: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a reading operation."""
        return await self._guard(aio.read(self.store, operation, *args, **kwargs))

    async def _guard(self, awaitable: Awaitable[T]) -> T:
        try:
            return await awaitable
        except StoreError as error:
            self._on_store_error(error)
            raise asyncio.CancelledError(str(error)) from error

    # -- keys -------------------------------------------------------------------------------

    def key_of(self, call: Call, body: bytes, *, parent: str) -> str:
        """The key of a call. Raises AmbiguousStep when a replay could not tell it from one that is open."""
        if call.key is not None:
            return named_key(parent, call.key, self._occurrences.number(parent, call.name, "@" + call.key))
        if call.tells_apart and not call.input and (parent, call.name) in self._open_without_input:
            raise AmbiguousStep(
                f"two calls of {call.name} without input are open at once: after a restart their results could be "
                f"swapped. Give each a key: .options(key=…)",
                field="key",
            )
        digest = codec.digest(body)
        return call_key(parent, call.name, digest, self._occurrences.number(parent, call.name, digest))

    def opened(self, call: Call, parent: str) -> None:
        """A call is about to run; calls without input may not overlap."""
        if call.key is None and not call.input:
            self._open_without_input.add((parent, call.name))

    def closed(self, call: Call, parent: str) -> None:
        """The call has its outcome."""
        self._open_without_input.discard((parent, call.name))

    # -- replay -----------------------------------------------------------------------------

    def used(self, key: str) -> None:
        """A record has answered its call."""
        self.records.use(key)
        self.answered += 1
        self.last_answer_ms = self.store.clock.boot_ms()

    # -- writing ----------------------------------------------------------------------------

    def step(
        self,
        call: Call,
        *,
        key: str,
        body: bytes,
        try_number: int = 0,
        token: str | None = None,
        child_task_id: str | None = None,
    ) -> steps.NewStep:
        """A call as the store takes it."""
        self.risk_seen = highest(self.risk_seen, call.risk)
        return steps.NewStep(
            kind=call.kind,
            name=call.name,
            key=key,
            risk=call.risk,
            payload=codec.pack(body),
            risk_seen=self.risk_seen,
            try_number=try_number,
            reconcilable=call.reconcile is not None and call.risk is not Risk.CRITICAL,
            token=token,
            child_task_id=child_task_id,
        )

    async def begin(self, step: steps.NewStep, *, question_id: str | None = None) -> int:
        """Make a call's intent durable."""
        self.is_live = True
        written = await self.write(steps.begin, self.fence, step, question_id=question_id)
        self.last_seq = written.last_seq
        return written.step_index

    async def complete(self, step: steps.NewStep, result: steps.Result, *, begun: bool) -> int:
        """Make a call's outcome durable, with the notes that belong to it."""
        self.is_live = True
        if self._notes:
            notes, self._notes = self._notes, []
            result = steps.with_notes(result, notes)
        written = await self.write(steps.complete, self.fence, step, result, begun=begun)
        self.last_seq = written.last_seq
        return written.step_index

    def note(self, note: Note) -> None:
        """Keep a note for the next step; nothing is noted while records answer."""
        if self.is_live or self.records.is_exhausted:
            self._notes.append(note)

    def take_notes(self) -> Sequence[Note]:
        """What no step has taken, for the end of the attempt."""
        notes, self._notes = self._notes, []
        return notes

    def token_for(self, record: Step | None) -> str:
        """A call's idempotency token: the same in every attempt."""
        return record.token if record is not None and record.token else self.store.ids.token()


def unpacked(record: Step, annotation: Any) -> Any:
    """The value a record holds, of the type it had."""
    assert record.output is not None, record.key
    return codec.decode(record.output, annotation=annotation)
