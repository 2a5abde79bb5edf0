"""What the codec promises of every value, for any value that hypothesis can think of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.codec import Packed, decode, encode, evidence, pack, roundtrip, unpack
from tests import nasty


@given(nasty.payload())
def test_any_json_value_comes_back_with_its_types(value: object) -> None:
    body, after = roundtrip(value)

    assert after == value
    assert ascii(after) == ascii(_with_sorted_keys(value))
    assert encode(after) == body


@given(nasty.typed_payload())
def test_any_typed_value_comes_back(value: object) -> None:
    body, after = roundtrip(value)

    assert after == value
    assert encode(after) == body


@given(nasty.anything(), st.sets(st.text(max_size=3)))
def test_any_mixture_is_written_and_twice_the_same(value: object, secrets: set[str]) -> None:
    body = evidence(value, secrets=secrets)

    decode(body)
    assert evidence(value, secrets=secrets) == body


@given(nasty.payload())
def test_a_json_value_is_kept_as_it_is(value: object) -> None:
    assert evidence(value) == evidence(value, secrets=["a secret that is nowhere"]) == encode(value)


@given(st.binary(max_size=6000) | nasty.payload().map(encode))
def test_any_body_comes_back(body: bytes) -> None:
    assert _unpack(pack(body)) == body


@given(st.lists(nasty.payload(max_leaves=3), max_size=30), st.integers(1, 40), st.integers(0, 600))
def test_a_structured_body_comes_back(values: list[object], times: int, size: int) -> None:
    body = encode({"list": values * times, "big": ["x" * size] * 20, "nested": [[{"k": values}]] * 5})

    assert _unpack(pack(body)) == body


def _unpack(packed: Packed) -> bytes:
    parts = dict(packed.parts)
    return unpack(packed.blob, lambda names: {name: parts[name] for name in names})


def _with_sorted_keys(value: object) -> object:
    """The value as canonical text would order it: by the bytes of the keys."""
    if isinstance(value, dict):
        return {key: _with_sorted_keys(value[key]) for key in sorted(value, key=lambda key: str(key).encode())}
    if isinstance(value, list):
        return [_with_sorted_keys(part) for part in value]
    return value
