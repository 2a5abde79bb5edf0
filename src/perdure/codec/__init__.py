"""Python values to canonical JSON and back, and how their bytes lie in a column.

A payload is JSON text: UTF-8, keys sorted, no whitespace. What JSON lacks is written as a small tagged
object from a closed table (`table.py`). Nothing here unpickles, imports or evaluates, and no class outside
the table is ever touched. This package knows no database: `pack` names the parts to keep, `unpack` asks for them.
"""

from __future__ import annotations

from perdure.codec.blobs import Packed, digest, pack, unpack
from perdure.codec.decoding import decode, encode_to_return, roundtrip
from perdure.codec.encoding import encode
from perdure.codec.evidence import OPAQUE, evidence, mask, mask_bytes, mask_text
from perdure.codec.fitting import ANY, converter_says, needs_pydantic
from perdure.codec.shapes import can_be, members_of, narrowed, parts, shape_of, strangers
from perdure.codec.table import DEFAULT_LIMIT, MAX_DEPTH, TAG

__all__ = [
    "ANY",
    "DEFAULT_LIMIT",
    "MAX_DEPTH",
    "OPAQUE",
    "TAG",
    "Packed",
    "can_be",
    "converter_says",
    "decode",
    "digest",
    "encode",
    "encode_to_return",
    "evidence",
    "mask",
    "mask_bytes",
    "mask_text",
    "members_of",
    "narrowed",
    "needs_pydantic",
    "pack",
    "parts",
    "roundtrip",
    "shape_of",
    "strangers",
    "unpack",
]
