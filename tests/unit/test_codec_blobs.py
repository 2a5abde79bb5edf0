"""Payloads are stored small and once, and what is damaged says so."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from perdure.codec import Packed, encode, pack, unpack
from perdure.errors import Damaged

WORDS = [word * 2 for word in ("lorem", "ipsum", "dolor", "sit", "amet", "tempor", "labore", "magna")]


def _text(size: int, seed: int) -> str:
    """Text that compresses like prose, different for each seed."""
    pick = random.Random(seed)
    return " ".join(f"{pick.choice(WORDS)}{pick.randrange(100)}" for _ in range(size // 10))


def _messages(count: int, size: int = 1200) -> list[object]:
    return [{"role": "user" if n % 2 else "assistant", "content": _text(size, n)} for n in range(count)]


def _fetch_from(parts: Mapping[bytes, bytes]) -> Callable[[Sequence[bytes]], Mapping[bytes, bytes]]:
    return lambda names: {name: parts[name] for name in names if name in parts}


def _unpack(packed: Packed) -> bytes:
    return unpack(packed.blob, _fetch_from(dict(packed.parts)))


def _nothing(names: Sequence[bytes]) -> Mapping[bytes, bytes]:
    raise AssertionError(f"no part was needed, yet {len(names)} were asked for")


def test_two_kilobytes_of_random_text_are_stored_inline() -> None:
    body = encode("".join(random.Random(1).choices("0123456789abcdefghijklmnopqrstuvwxyz", k=2048)))

    packed = pack(body)

    assert packed.parts == ()
    assert len(packed.blob) <= len(body) + 10
    assert unpack(packed.blob, _nothing) == body


def test_a_text_that_compresses_well_is_stored_compressed_and_inline() -> None:
    body = encode(_text(10_000, 1))

    packed = pack(body)

    assert packed.parts == ()
    assert len(packed.blob) < len(body) / 2
    assert unpack(packed.blob, _nothing) == body


def test_equal_big_payloads_share_their_part() -> None:
    body = encode(_text(100_000, 1))

    first, second = pack(body), pack(body)

    assert first == second
    assert len(first.blob) == 33
    assert len(first.parts) == 1
    assert len(first.parts[0][1]) < len(body) / 2
    assert _unpack(first) == body


def test_a_part_that_is_known_is_left_out() -> None:
    first = pack(encode(_messages(50)))
    known = dict(first.parts)

    assert pack(encode(_messages(50)), known=known) == Packed(first.blob)


WRAPPERS: list[Callable[[list[object]], object]] = [
    lambda messages: messages,
    lambda messages: {"messages": messages, "model": "m", "tools": [{"name": "search"}]},
    lambda messages: [[messages], {"temperature": 0}],
]


@pytest.mark.parametrize("wrap", WRAPPERS, ids=["list", "object", "arguments"])
@pytest.mark.parametrize("size", [120, 1200], ids=["short", "long"])
def test_a_conversation_that_grows_costs_only_what_is_new(wrap: Callable[[list[object]], object], size: int) -> None:
    messages = _messages(400, size)
    store: dict[bytes, bytes] = {}
    columns: list[bytes] = []
    stored_bytes: list[int] = []

    for count in range(2, len(messages) + 1, 2):
        packed = pack(encode(wrap(messages[:count])), known=store)
        store.update(packed.parts)
        columns.append(packed.blob)
        stored_bytes.append(sum(map(len, store.values())) + sum(map(len, columns)))

    whole = len(encode(wrap(messages)))
    assert unpack(columns[-1], _fetch_from(store)) == encode(wrap(messages))
    assert unpack(columns[99], _fetch_from(store)) == encode(wrap(messages[:200]))
    # Twice as long is about twice as much, where whole copies would take four times as much.
    assert stored_bytes[199] < 2.5 * stored_bytes[99]
    assert stored_bytes[199] < 2 * whole + 200 * 1500
    assert max(map(len, columns)) <= 4096


def test_a_list_that_loses_its_first_elements_shares_the_others() -> None:
    messages = _messages(300)
    store = dict(pack(encode(messages)).parts)

    packed = pack(encode(messages[7:]), known=store)

    assert sum(len(blob) for _, blob in packed.parts) < 8_000


def test_a_context_that_repeats_inside_a_body_is_stored_once() -> None:
    block = {"content": _text(3000, 1)}

    packed = pack(encode([block] * 200))

    assert sum(len(blob) for _, blob in packed.parts) < 8_000
    assert _unpack(packed) == encode([block] * 200)


def test_each_part_is_named_by_the_hash_of_what_it_holds_uncompressed() -> None:
    message = {"content": _text(5000, 1)}
    packed = pack(encode([message, message, {"content": _text(300, 2)}] * 10))

    name = hashlib.sha256(b"J" + encode(message)).digest()

    assert dict(packed.parts)[name][:1] == b"Z"


def test_parts_are_asked_for_a_level_at_a_time() -> None:
    packed = pack(encode(_messages(400)))
    asked: list[int] = []

    def fetch(names: Sequence[bytes]) -> Mapping[bytes, bytes]:
        asked.append(len(names))
        return _fetch_from(dict(packed.parts))(names)

    unpack(packed.blob, fetch)

    assert len(asked) <= 6
    assert sum(asked) == len(packed.parts)


# -- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "empty"),
        (b"X{}", "unknown codec byte 0x58"),
        (b"\x00\x01", "unknown codec byte 0x00"),
        (b"Z", "cut short"),
        (b"Z\x00\x00\x00\x05garbage", "cannot be read"),
        (b"R" + bytes(31), "codec R is cut short"),
        (b"L\x04", "malformed"),
        (b"L\x01" + bytes(31), "malformed"),
        (b"L\x03\x00\x00\x00\x09abc", "malformed"),
        (b"R" + bytes(32), "the part 0000"),
        (b"L\x01" + bytes(32), "missing"),
    ],
    ids=ascii,
)
def test_a_damaged_blob_says_what_is_wrong(blob: bytes, message: str) -> None:
    with pytest.raises(Damaged, match=message):
        unpack(blob, lambda _: {})


def test_every_missing_part_is_named() -> None:
    packed = pack(encode(_messages(40)))

    for name, _ in packed.parts:
        others = {key: blob for key, blob in packed.parts if key != name}
        with pytest.raises(Damaged, match=name.hex()):
            unpack(packed.blob, _fetch_from(others))


def test_a_part_that_was_changed_is_found_by_its_hash() -> None:
    packed = pack(encode(_messages(40, 400)))

    for name, blob in packed.parts:
        changed = dict(packed.parts) | {name: blob[:-1] + bytes([blob[-1] ^ 1])}
        with pytest.raises(Damaged):
            unpack(packed.blob, _fetch_from(changed))


def test_a_compressed_text_that_is_cut_or_longer_than_it_says_is_refused() -> None:
    blob = pack(encode("a" * 100_000)).blob

    assert blob[:1] == b"Z"
    for damaged in (blob[:-5], b"Z\x00\x00\x00\x10" + blob[5:], b"Z\xff\xff\xff\xff" + blob[5:]):
        with pytest.raises(Damaged):
            unpack(damaged, _nothing)


def test_parts_that_stand_for_any_amount_of_text_are_refused() -> None:
    plain = b"J" + b"a" * 10_000_000
    parts = {hashlib.sha256(plain).digest(): plain}
    for _ in range(4):
        plain = b"L" + (b"\x01" + hashlib.sha256(plain).digest()) * 100
        parts[hashlib.sha256(plain).digest()] = plain

    with pytest.raises(Damaged, match="more than"):
        unpack(plain, _fetch_from(parts))


def test_a_part_that_is_a_reference_itself_is_refused() -> None:
    plain = b"R" + bytes(32)

    with pytest.raises(Damaged, match="mere reference"):
        unpack(b"R" + hashlib.sha256(plain).digest(), lambda names: dict.fromkeys(names, plain))
