"""Whether what somebody says of a question is of the type that was asked for, before it counts.

Looked at twice: where it is said, as far as the type is known there, and by the attempt that takes it, which knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_origin

from perdure import codec, phrases
from perdure.codec.fitting import fits
from perdure.definitions import returns, tools_named
from perdure.errors import BadInput

_BY_WORD: Final[Mapping[str, type]] = {one.__name__: one for one in (str, bool, int, float, list, dict)}


def type_word(annotation: Any) -> str:
    """What a type is called in questions; `any` where everything will do."""
    if annotation is codec.ANY:
        return "any"
    # `list[str]` and the like have the name of their origin alone.
    name = None if get_origin(annotation) is not None else getattr(annotation, "__name__", None)
    return name or str(annotation).replace("typing.", "")


def is_of_type(value: Any, annotation: Any) -> bool:
    """Whether a value is, or as it comes back from the store can be made, what the annotation wants."""
    if isinstance(value, bool) and annotation in (int, float):
        return False
    return fits(codec.roundtrip(value, annotation=annotation)[1], annotation)


def check_answer(value: Any, wants: str, *, question_id: str) -> None:
    """Refuse an answer that is not what the agent asked for. Raises BadInput. Classes of the agent's own pass here."""
    annotation = _BY_WORD.get(wants.partition("[")[0], codec.ANY)  # of a `list[str]`, that it is a list
    if not is_of_type(value, annotation):
        hint = {"bool": ": say yes or no", "int": ": give a number", "float": ": give a number"}.get(wants, "")
        article = "an" if wants == "int" else "a"
        raise BadInput(f"{question_id} wants {article} {wants}, not {phrases.shown(value)}{hint}", field="answer")


def check_result(value: Any, tool_name: object, *, question_id: str) -> None:
    """Refuse a result that the tool cannot have returned, where this process has the tool. Raises BadInput."""
    tools = [] if not isinstance(tool_name, str) else tools_named(tool_name)
    if tools and not any(is_of_type(value, returns(one.fn)) for one in tools):
        text = f"{tool_name} returns {type_word(returns(tools[0].fn))}, which {phrases.shown(value)} is not"
        raise BadInput(f"{question_id}: {text}", field="result")
