"""How the bytes of a payload lie in a column: packed, and with its big parts stored once by their hash.

The first byte of every blob, in a column or of a part, is its codec:

    J   JSON text as it is
    Z   JSON text compressed: its length (4 bytes, big-endian), then a zlib stream
    R   a reference: the hash (32 bytes) of the part that holds everything
    L   a list of pieces which, joined, are the text; each is one of
            1   the hash of a part
            2   a comma, then the hash of a part
            3   a length (4 bytes) and as many bytes of text

A part is itself a blob J, Z or L, and its hash is the SHA-256 of it before compression. Any other first byte is
damage, or a newer program. An array that grows is cut at its elements, and runs of elements again into parts, so
that the longer one shares all but its end with the shorter; where a cut falls depends on the content alone.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from perdure.codec.table import to_json
from perdure.errors import Damaged, NotSerializable

Fetch = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]

# Measured on recorded runs, zlib at level 1 halves a text of 2 KB in 60 us, and leaves a third of 7 KB for 90 us;
# zstd takes half the time for the same size, which is not worth a dependency for a body that is packed once.
_COMPRESS_BODY_BYTES: Final = 4096
# A part is packed once and then shared, so it may cost more.
_COMPRESS_PART_BYTES: Final = 1024
_ZLIB_LEVEL: Final = 1
_INLINE_BYTES: Final = 4096
_PART_BYTES: Final = 256
# The open end of a list is written anew each time the list grows, so runs are short: of small pieces by their
# bytes, of all by their number. One piece in four ends a run; which one depends on the piece, not on its place,
# so that a list that loses its first elements soon falls into the same runs again.
_LONGEST_SMALL_RUN_BYTES: Final = 1024
_MANY_PIECES: Final = 16
_SHORTEST_RUN: Final = 4
_LONGEST_RUN: Final = 32
_RUN_MASK: Final = 3
# Containers in containers are cut this deep; each may add a dozen levels of runs before its own.
_DEEPEST_CUT: Final = 8
_DEEPEST: Final = 128
_LARGEST_BYTES: Final = 1 << 30
_HASH_BYTES: Final = 32

_read_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Packed(msgspec.Struct, frozen=True, gc=False):
    """A blob for the column, and the parts it refers to: hash and blob. Store the parts in the same transaction."""

    # A struct, as all that is made anew for every step: a frozen dataclass takes ten times as long to make. The garbage
    # collector need not look at it, since it refers to nothing that could refer back.

    blob: bytes
    parts: tuple[tuple[bytes, bytes], ...] = ()


def digest(body: bytes) -> str:
    """32 hexadecimal digits that name these bytes."""
    return hashlib.sha256(body).hexdigest()[:32]


def pack(body: bytes, *, known: Container[bytes] = frozenset()) -> Packed:
    """The body as it is stored. Equal bodies give equal blobs; a part whose hash is in `known`, as stored already, is
    left out.
    """
    if len(body) < _COMPRESS_BODY_BYTES:
        return Packed(b"J" + body)
    if len(body) > _LARGEST_BYTES:
        raise NotSerializable(f"the payload takes {len(body)} bytes, more than the {_LARGEST_BYTES} a blob may hold")
    store = _Parts(known)
    pieces = _plan(body, 0)
    whole = b"J" + body if pieces is None else _write_list(b"", body, pieces, store)
    inline = _compress(whole, _COMPRESS_BODY_BYTES)
    if len(inline) >= _INLINE_BYTES:
        inline = b"R" + store.add(whole)
    return Packed(inline, tuple(store.new.items()))


def unpack(blob: bytes | memoryview, fetch: Fetch) -> bytes:
    """The body back. `fetch` gets hashes, as often as the parts are deep, and gives their blobs.

    Raises Damaged that names the missing part, the part that is not what its hash says, or the unknown codec.
    """
    if type(blob) is bytes and blob[:1] == b"J":
        return blob[1:]
    root = _open(bytes(blob))
    if root[:1] == b"J":
        return root[1:]
    opened: dict[bytes, bytes] = {}
    wanted = dict.fromkeys(_references(root))
    for _ in range(_DEEPEST):
        if not wanted:
            return b"".join(_join(root, opened, _Budget(_LARGEST_BYTES)))
        found = fetch(tuple(wanted))
        below: dict[bytes, None] = {}
        for name in wanted:
            if name not in found:
                raise Damaged(f"the part {name.hex()} of a payload is missing; restore it from a backup")
            opened[name] = _open_part(name, bytes(found[name]))
            below |= dict.fromkeys(_references(opened[name]))
        wanted = {name: None for name in below if name not in opened}
    raise Damaged(f"a payload's parts lie more than {_DEEPEST} deep, which nothing writes; restore it from a backup")


# -- writing --------------------------------------------------------------------------------


class _Parts:
    """The parts that one body needs and that are not stored yet."""

    __slots__ = ("_known", "new")

    def __init__(self, known: Container[bytes]) -> None:
        self._known = known
        self.new: dict[bytes, bytes] = {}

    def add(self, plain: bytes) -> bytes:
        name = hashlib.sha256(plain).digest()
        if name not in self.new and name not in self._known:
            self.new[name] = _compress(plain, _COMPRESS_PART_BYTES)
        return name


class _Piece(NamedTuple):
    """An element of an array, or a member of an object with its key before it."""

    key: bytes
    text: bytes
    pieces: list[_Piece] | None


def _compress(plain: bytes, least_bytes: int) -> bytes:
    if plain[:1] != b"J" or len(plain) < least_bytes:
        return plain
    squeezed = b"Z" + (len(plain) - 1).to_bytes(4, "big") + zlib.compress(plain[1:], _ZLIB_LEVEL)
    return squeezed if len(squeezed) < len(plain) else plain


def _plan(text: bytes, depth: int) -> list[_Piece] | None:
    """How to cut a container, or None if it is better stored whole: it is small, or hardly has parts of its own."""
    if len(text) < _INLINE_BYTES or depth > _DEEPEST_CUT:
        return None
    cut = _cut(text)
    if cut is None:
        return None
    pieces = [_Piece(key, part, _plan(part, depth + 1)) for key, part in cut]
    is_worth_it = len(pieces) >= _MANY_PIECES or any(piece.pieces is not None for piece in pieces)
    if not is_worth_it and text[:1] == b"[":
        is_worth_it = sum(len(piece.text) >= _PART_BYTES for piece in pieces) > 1
    return pieces if is_worth_it else None


def _cut(text: bytes) -> list[tuple[bytes, bytes]] | None:
    """The members or elements of a container with their keys; None if joined they would not be this very text."""
    try:
        if text[:1] == b"[":
            cut = [(b"", bytes(part)) for part in _read_elements(text)]
        elif text[:1] == b"{":
            cut = [(to_json(key) + b":", bytes(part)) for key, part in _read_members(text).items()]
        else:
            return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    joined = b",".join([key + part for key, part in cut])
    return cut if text[1:-1] == joined else None


def _write_list(key: bytes, text: bytes, pieces: list[_Piece], store: _Parts) -> bytes:
    middle = _gather_runs(_list_pieces(pieces, store), store)
    return b"L" + b"".join([_literal(key + text[:1]), *middle, _literal(text[-1:])])


def _list_pieces(pieces: list[_Piece], store: _Parts) -> list[bytes]:
    """The pieces between the brackets. Small ones stay as text, and become a part only by the run."""
    listed: list[bytes] = []
    small = bytearray()
    for index, piece in enumerate(pieces):
        whole = piece.key + piece.text
        if len(whole) < _PART_BYTES:
            small += (b"," if index else b"") + whole
            ends_run = len(small) >= _PART_BYTES and zlib.crc32(whole) & _RUN_MASK == 0
            if ends_run or len(small) >= _LONGEST_SMALL_RUN_BYTES:
                listed.append(b"\x01" + store.add(b"J" + small))
                small.clear()
            continue
        if small:
            listed.append(_literal(bytes(small)))
            small.clear()
        if piece.pieces is None:
            name = store.add(b"J" + whole)
        else:
            name = store.add(_write_list(piece.key, piece.text, piece.pieces, store))
        listed.append((b"\x02" if index else b"\x01") + name)
    return [*listed, _literal(bytes(small))] if small else listed


def _gather_runs(listed: list[bytes], store: _Parts) -> list[bytes]:
    """The same pieces with runs of them put away as parts, level on level; the open end stays in place."""
    open_end: list[bytes] = []
    while len(listed) > _MANY_PIECES:
        starts = [0]
        size_bytes = 0
        for index, piece in enumerate(listed, start=1):
            length = index - starts[-1]
            size_bytes += len(piece)
            is_full = length >= _LONGEST_RUN or size_bytes >= _LONGEST_SMALL_RUN_BYTES
            if length >= _SHORTEST_RUN and (is_full or piece[-1] & _RUN_MASK == 0):
                starts.append(index)
                size_bytes = 0
        open_end = listed[starts[-1] :] + open_end
        listed = [b"\x01" + store.add(b"L" + b"".join(listed[start:end])) for start, end in pairwise(starts)]
    return listed + open_end


def _literal(text: bytes) -> bytes:
    return b"\x03" + len(text).to_bytes(4, "big") + text


# -- reading --------------------------------------------------------------------------------


class _Budget:
    """How much text may still be joined: a few parts that name each other could stand for any amount."""

    __slots__ = ("_left_bytes",)

    def __init__(self, most_bytes: int) -> None:
        self._left_bytes = most_bytes

    def spend(self, text: bytes | memoryview) -> bytes | memoryview:
        # An empty piece counts too, or a short list could keep the loop busy for ever.
        self._left_bytes -= len(text) + 1
        if self._left_bytes < 0:
            raise Damaged(f"a payload's parts join to more than {_LARGEST_BYTES} bytes; restore it from a backup")
        return text


def _open(blob: bytes) -> bytes:
    """The blob before compression: J, L or R."""
    match blob[:1]:
        case b"J" | b"L":
            return blob
        case b"R" if len(blob) == 1 + _HASH_BYTES:
            return blob
        case b"Z" if len(blob) > 5:
            return b"J" + _decompress(blob)
        case b"":
            raise Damaged("a payload is empty, not even its codec is there; restore it from a backup")
        case b"Z" | b"R":
            raise Damaged(f"a payload of codec {blob[:1].decode()} is cut short; restore it from a backup")
        case codec:
            raise Damaged(f"a payload has the unknown codec byte 0x{codec.hex()}; a newer perdure may read it")


def _decompress(blob: bytes) -> bytes:
    length = int.from_bytes(blob[1:5], "big")
    stream = zlib.decompressobj()
    try:
        # One byte more than was promised is enough to see a stream that would fill the memory.
        text = stream.decompress(blob[5:], min(length, _LARGEST_BYTES) + 1)
    except zlib.error as error:
        raise Damaged(f"a compressed payload cannot be read ({error}); restore it from a backup") from error
    if len(text) != length or not stream.eof:
        raise Damaged(f"a compressed payload should hold {length} bytes and does not; restore it from a backup")
    return text


def _open_part(name: bytes, blob: bytes) -> bytes:
    plain = _open(blob)
    if plain[:1] == b"R":
        raise Damaged(f"the part {name.hex()} of a payload is a mere reference; restore it from a backup")
    if hashlib.sha256(plain).digest() != name:
        raise Damaged(f"the part {name.hex()} of a payload is not what its hash says; restore it from a backup")
    return plain


def _references(plain: bytes) -> list[bytes]:
    if plain[:1] == b"R":
        return [plain[1:]]
    if plain[:1] == b"L":
        return [content for kind, content in _walk(plain) if kind != 3]
    return []


def _walk(plain: bytes) -> Iterator[tuple[int, bytes]]:
    """The pieces of a list: their kind, and a hash or a text."""
    at = 1
    while at < len(plain):
        kind = plain[at]
        at += 1
        length = _HASH_BYTES
        if kind == 3:
            length = int.from_bytes(plain[at : at + 4], "big")
            at += 4
        content = plain[at : at + length]
        at += length
        if kind not in (1, 2, 3) or len(content) != length:
            raise Damaged("a payload's list of pieces is malformed; restore it from a backup")
        yield kind, content


def _join(plain: bytes, opened: Mapping[bytes, bytes], budget: _Budget) -> Iterator[bytes | memoryview]:
    budget.spend(b"")
    if plain[:1] == b"J":
        yield budget.spend(memoryview(plain)[1:])
        return
    if plain[:1] == b"R":
        yield from _join(opened[plain[1:]], opened, budget)
        return
    for kind, content in _walk(plain):
        if kind == 3:
            yield budget.spend(content)
            continue
        if kind == 2:
            yield budget.spend(b",")
        yield from _join(opened[content], opened, budget)
