"""Words of a command line as the arguments of an agent.

A word is read as JSON where it is JSON, else as text, and made what the agent's annotation wants; `name=value` names
a parameter, and a name that is none is refused: it is more often mistyped than meant as text.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import partial
from inspect import Parameter, signature
from typing import Any

from perdure import codec, phrases
from perdure.codec.fitting import conform, fits
from perdure.definitions import AgentDefinition, hints
from perdure.errors import BadInput
from perdure.runtime.answers import type_word, why_person_may_not

JSON_BEGINS = frozenset('[{"')


def read_arguments(agent: AgentDefinition, words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments for an agent. Raises BadInput for a word that its parameter cannot take."""
    parameters = list(signature(agent.fn).parameters.values())
    placed = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    by_position = [one for one in parameters if one.kind in placed]
    rest = next((one for one in parameters if one.kind is Parameter.VAR_POSITIONAL), None)
    takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    nameable = {one.name for one in parameters if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    wanted = hints(agent.fn)
    given: list[Any] = []
    named: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals and (name in nameable or (takes_any and name.isidentifier())):
            named[name] = _read(text, wanted.get(name, codec.ANY), f"argument {name}")
            continue
        if equals and name.isidentifier():
            has = f"it has {', '.join(sorted(nameable))}" if nameable else "it has none to name"
            text = json.dumps(word, ensure_ascii=False)
            raise BadInput(
                f"{agent.name} has no parameter {name}: {has}. To pass {word} as text, write {shlex.quote(text)}",
                field="arguments",
            )
        parameter = by_position[len(given)] if len(given) < len(by_position) else rest
        if parameter is None:
            most = f"{agent.name} takes {phrases.count(len(by_position), 'argument')}"
            raise BadInput(f"{most}; {word!r} is one too many", field="arguments")
        given.append(_read(word, wanted.get(parameter.name, codec.ANY), f"argument {parameter.name}"))
    return given, named


def _read(text: str, annotation: Any, what: str) -> Any:
    """What the word means to the annotation: the first reading that is, or can be made, what it wants."""
    refused = ""
    try:
        candidates = [json.loads(text, parse_constant=_no_number), text]
    except ValueError as error:
        candidates = [text]
        refused = f"is no JSON: {error}" if text.lstrip()[:1] in JSON_BEGINS else ""
    for value in candidates:
        made = conform(value, annotation, opened=partial(_same, value))
        if not fits(made, annotation):
            continue
        if dropped := codec.strangers(value, annotation):
            raise BadInput(f"{what}: {'; '.join(dropped)}", field="arguments")
        return made
    why = "" if refused else why_person_may_not(candidates[0], annotation)
    misfit = f"{what} must be {type_word(annotation)}; {text!r} {refused or 'is not'}"
    raise BadInput(misfit + (why and f": {why}"), field="arguments")


def _same(value: object) -> object:
    return value


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
