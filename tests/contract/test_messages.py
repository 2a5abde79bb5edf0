"""Transcripts, checkpoints, deliveries and artifacts: found again by their keys, in order, each thing once."""

from __future__ import annotations

import hashlib
import threading

import pytest

from perdure import codec
from perdure.errors import BadInput, Damaged, LeaseLost, NotFound, NotSerializable, Refused
from perdure.model.delivery import Delivery
from perdure.model.message import NewMessage
from perdure.model.task import Claim, Wait, WaitKind
from perdure.store import artifacts, messages, steps, traces
from tests.contract.conftest import OpenSecond
from tests.nasty import JSON_VALUES
from tests.world import World, packed

LIMIT = 1000


def _say(world: World, claim: Claim, key: str, text: object = "hi", *, role: str = "user", **fields: str) -> int:
    message = NewMessage(role, codec.encode(text), **fields)  # type: ignore[arg-type]  # the text fields only
    return world.store.call(messages.append, claim.fence, message, step_key=key)


def _send(world: World, task_id: str, key: str | None, value: object = 1, *, name: str = "mail") -> Delivery:
    return world.store.call(messages.send, task_id, name=name, key=key, payload=packed(value), unread_limit=LIMIT)


def _take(world: World, claim: Claim, name: str = "mail") -> bytes | None:
    unread = world.store.read(messages.oldest_unread, claim.task.id, name)
    return None if unread is None else unread.payload


# -- messages --------------------------------------------------------------------------------


def test_messages_are_numbered_from_zero_and_listed_in_that_order(world: World) -> None:
    claim = world.start()

    assert [_say(world, claim, key, key) for key in "abc"] == [0, 1, 2]

    found = world.store.read(messages.listing, claim.task.id)
    assert [(one.seq, one.content, one.step_key) for one in found] == [(0, "a", "a"), (1, "b", "b"), (2, "c", "c")]
    assert [one.seq for one in world.store.read(messages.listing, claim.task.id, after=0, limit=1)] == [1]
    assert world.task(claim.task.id).message_count == 3


def test_a_message_comes_back_as_it_was_said(world: World) -> None:
    claim = world.start()
    world.record(claim, "before")
    calls = [{"id": "call-1", "name": "bash", "arguments": "{}"}]
    said = NewMessage(
        "assistant",
        codec.encode("calling"),
        reasoning="thinking \x00 hard",
        tool_call_id="call-1",
        tool_name="bash",
        tool_calls=codec.encode(calls),
        created_at_ms=7,
    )

    world.store.call(messages.append, claim.fence, said, step_key="m")

    (found,) = world.store.read(messages.listing, claim.task.id)
    assert (found.role, found.content, found.reasoning) == ("assistant", "calling", "thinking \x00 hard")
    assert (found.tool_call_id, found.tool_name, found.tool_calls) == ("call-1", "bash", calls)
    assert (found.task_id, found.at_step, found.created_at) == (claim.task.id, 2, 7)


def test_every_nasty_value_comes_back_from_a_transcript(world: World) -> None:
    claim = world.start()

    for number, value in enumerate(JSON_VALUES):
        _say(world, claim, f"m{number}", value)

    found = world.store.read(messages.listing, claim.task.id)
    # As text, which tells 1 from True and 0.0 from -0.0.
    assert [codec.encode(one.content) for one in found] == [codec.encode(value) for value in JSON_VALUES]


def test_a_message_with_a_known_key_is_said_once(world: World) -> None:
    claim = world.start()
    _say(world, claim, "a", "first")
    _say(world, claim, "b")

    assert world.unchanged_by(_say, world, claim, "a", "second") == 0


def test_half_a_surrogate_pair_in_the_reasoning_is_refused(world: World) -> None:
    claim = world.start()

    outcome = world.unchanged_by(_say, world, claim, "a", reasoning="x\ud83d")

    assert isinstance(outcome, NotSerializable)


def test_the_keys_of_a_transcript_come_with_the_trace(world: World) -> None:
    claim = world.start()
    for key in "ab":
        _say(world, claim, key)

    assert world.store.read(traces.read, claim.task.id).message_keys == {"a", "b"}


# -- checkpoints -----------------------------------------------------------------------------


def test_checkpoints_are_numbered_and_the_newest_is_found_first(world: World) -> None:
    claim = world.start()
    world.record(claim, "call", tool_call_id="call-1")

    numbers = [
        world.store.call(messages.save_checkpoint, claim.fence, packed({"at": key}), step_key=key) for key in "ab"
    ]

    assert numbers == [1, 2]
    (newest,) = world.store.read(messages.checkpoints, claim.task.id)
    assert (newest.number, newest.step_key, newest.state) == (2, "b", b'{"at":"b"}')
    assert (newest.at_step, newest.last_tool_call_id) == (2, "call-1")
    assert world.task(claim.task.id).checkpoint == 2
    assert world.feed(claim.task.id)[-1].payload == {"number": 2, "at_step": 2}


def test_a_checkpoint_knows_which_calls_were_open(world: World) -> None:
    claim = world.start()
    for key, open_keys in (("a", ["=act:1#0", "@sent#1"]), ("b", [])):
        world.store.call(messages.save_checkpoint, claim.fence, packed(key), step_key=key, open_keys=open_keys)

    first, second = (world.store.read(messages.resume_point, claim.task.id, number) for number in (1, 2))

    assert first is not None and first.open_keys == {"=act:1#0", "@sent#1"}
    assert second is not None and second.open_keys == set()


def test_a_checkpoint_knows_nothing_of_steps_that_were_recorded_while_it_was_on_its_way(world: World) -> None:
    claim = world.start()
    known = world.task(claim.task.id).step_count
    world.record(claim, "call")

    world.store.call(messages.save_checkpoint, claim.fence, packed(1), step_key="a", at_step=known)

    point = world.store.read(messages.resume_point, claim.task.id, 1)
    assert point is not None and point.at_step == known
    assert world.task(claim.task.id).step_count == known + 1


def test_a_checkpoint_with_a_known_key_is_saved_once(world: World) -> None:
    claim = world.start()
    world.store.call(messages.save_checkpoint, claim.fence, packed("first"), step_key="a")
    world.store.call(messages.save_checkpoint, claim.fence, packed("other"), step_key="b")

    again = world.unchanged_by(world.store.call, messages.save_checkpoint, claim.fence, packed("second"), step_key="a")

    assert again == 1


def test_a_state_that_recurs_is_stored_once(world: World) -> None:
    claim = world.start()
    state = packed([{"line": "a rather long line of text " * 20, "n": n} for n in range(200)])
    world.store.call(messages.save_checkpoint, claim.fence, state, step_key="a")
    parts = world.rows("SELECT count(*) FROM payloads")

    world.store.call(messages.save_checkpoint, claim.fence, state, step_key="b")

    assert world.rows("SELECT count(*) FROM payloads") == parts


# -- deliveries ------------------------------------------------------------------------------


def test_a_delivery_is_kept_until_it_is_taken_oldest_first(world: World) -> None:
    claim = world.start()
    for number in range(3):
        _send(world, claim.task.id, f"k{number}", number)
    _send(world, claim.task.id, "other", "x", name="other")

    taken = []
    while (payload := _take(world, claim)) is not None:
        taken.append(payload)
        unread = world.store.read(messages.oldest_unread, claim.task.id, "mail")
        assert unread is not None
        world.record(claim, f"r{len(taken)}", steps.Result(completed=True, output=packed(1), delivery=unread.n))

    assert taken == [b"0", b"1", b"2"]
    assert _take(world, claim, "other") == b'"x"'


def test_a_task_may_be_sent_to_before_it_runs(world: World) -> None:
    task = world.admit()

    _send(world, task.id, "k", "early")

    assert _take(world, world.claim(task.id)) == b'"early"'


def test_the_same_key_is_delivered_once_and_the_first_is_returned(world: World) -> None:
    task = world.admit()
    first = _send(world, task.id, "k", "first")

    again = world.unchanged_by(_send, world, task.id, "k", "second")

    assert again == first
    assert (first.payload, first.key, first.task_id, first.step_key) == (b'"first"', "k", task.id, None)
    assert _send(world, task.id, "k", name="other").id != first.id


def test_a_known_key_is_found_also_after_the_task_has_ended(world: World) -> None:
    claim = world.start()
    first = _send(world, claim.task.id, "k")
    world.complete(claim)

    assert world.unchanged_by(_send, world, claim.task.id, "k") == first


def test_without_a_key_every_delivery_is_another_one(world: World) -> None:
    task = world.admit()

    assert _send(world, task.id, None).key != _send(world, task.id, None).key


def test_one_key_sent_by_many_at_once_is_one_delivery(world: World, request: pytest.FixtureRequest) -> None:
    other = world.store
    if world.store.database.url != "sqlite://":
        open_second: OpenSecond = request.getfixturevalue("open_second")
        other = open_second(world.store)
    task = world.admit()
    found: list[str] = []
    barrier = threading.Barrier(8)

    def send(number: int) -> None:
        barrier.wait()
        who = World(other if number % 2 else world.store, world.clock)
        found.append(_send(who, task.id, "k", number).id)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(found), len(set(found))) == (8, 1)


def test_a_delivery_wakes_the_task_that_was_set_aside_for_it(world: World) -> None:
    claim = world.start()
    world.set_aside(claim, Wait(WaitKind.RECEIVE, ("mail",)))

    _send(world, claim.task.id, "k", name="other")
    assert world.task(claim.task.id).status == "waiting"

    _send(world, claim.task.id, "k")
    assert world.task(claim.task.id).status == "pending"


def test_an_ended_task_takes_nothing_any_more(world: World) -> None:
    claim = world.start()
    world.complete(claim)

    assert isinstance(world.unchanged_by(_send, world, claim.task.id, "k"), Refused)
    assert isinstance(world.unchanged_by(_send, world, "nowhere", "k"), NotFound)
    assert isinstance(world.unchanged_by(_send, world, claim.task.id, "k", name=""), BadInput)


def test_only_so_many_deliveries_wait_unread(world: World) -> None:
    claim = world.start()

    def send(key: str) -> Delivery:
        return world.store.call(messages.send, claim.task.id, name="mail", key=key, payload=packed(1), unread_limit=2)

    send("a")
    send("b")
    refused = world.unchanged_by(send, "c")

    assert isinstance(refused, Refused)
    assert refused.limits == ("unread 2",)
    unread = world.store.read(messages.oldest_unread, claim.task.id, "mail")
    assert unread is not None
    world.record(claim, "r", steps.Result(completed=True, output=packed(1), delivery=unread.n))
    send("c")


# -- artifacts -------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"text", bytes(range(256)) * 1000])
def test_an_artifact_is_found_by_the_sha_256_of_its_content(world: World, content: bytes) -> None:
    sha256 = world.store.call(artifacts.keep, content)

    assert sha256 == hashlib.sha256(content).hexdigest()
    assert world.store.read(artifacts.get, sha256) == content


def test_the_same_content_is_stored_once(world: World) -> None:
    world.store.call(artifacts.keep, b"text")
    before = world.rows("SELECT sha256, content, created_at FROM artifacts")
    world.store.call(artifacts.keep, b"text")

    assert world.rows("SELECT sha256, content, created_at FROM artifacts") == before
    assert len(before) == 1


def test_an_artifact_that_is_unknown_or_no_longer_what_its_hash_says_is_an_error(world: World) -> None:
    sha256 = world.store.call(artifacts.keep, b"text")
    with pytest.raises(NotFound, match="artifact"):
        world.store.read(artifacts.get, "0" * 64)
    with pytest.raises(BadInput, match="sha256"):
        world.store.read(artifacts.get, "\x00")

    world.execute("UPDATE artifacts SET content = :content", content=b"other")
    with pytest.raises(Damaged, match=sha256):
        world.store.read(artifacts.get, sha256)


# -- events ----------------------------------------------------------------------------------


def test_an_event_of_the_agents_own_is_numbered_like_all_others(world: World) -> None:
    claim = world.start()

    seq = world.store.call(messages.emit_owned, claim.fence, "my kind", ["not", "a", "mapping"])

    told = world.feed(claim.task.id)[-1]
    assert (told.seq, told.kind, told.payload) == (seq, "my kind", {"value": ["not", "a", "mapping"]})
    world.interrupt(claim)
    with pytest.raises(LeaseLost):
        world.store.call(messages.emit_owned, claim.fence, "my kind", {})
