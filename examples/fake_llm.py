"""A stand-in for a model provider's client, so that the examples run without a network and without a key.

It answers by rule, takes a moment like a real model, and writes each call that was paid for into the file named by
FAKE_LLM_BILL: after a crash that file shows what was bought again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

THINKING_S = float(os.environ.get("FAKE_LLM_THINKING_S", "0.05"))


@dataclass
class Function:
    """What the model wants to be called. `arguments` is JSON, as models write it."""

    name: str
    arguments: str


@dataclass
class ToolCall:
    """One call that the model asks for."""

    id: str
    function: Function
    type: str = "function"


@dataclass
class Message:
    """What the model says: text, or calls."""

    content: str | None
    tool_calls: list[ToolCall] = field(default_factory=list)
    role: str = "assistant"


@dataclass
class Choice:
    """One answer."""

    message: Message


@dataclass
class Usage:
    """What the call cost."""

    prompt_tokens: int
    completion_tokens: int


@dataclass
class Completion:
    """An answer with its price."""

    choices: list[Choice]
    usage: Usage


class AsyncLLM:
    """Looks like an asynchronous client: `await llm.chat.completions.create(model=…, messages=…, tools=…)`."""

    def __init__(self) -> None:
        self.chat = self
        self.completions = self

    async def create(self, *, model: str, messages: Sequence[Any], tools: Sequence[Any] = ()) -> Completion:
        """The next message of the conversation."""
        await asyncio.sleep(THINKING_S)
        return answer(model, messages, tools)


class LLM:
    """Looks like a blocking client."""

    def __init__(self) -> None:
        self.chat = self
        self.completions = self

    def create(self, *, model: str, messages: Sequence[Any], tools: Sequence[Any] = ()) -> Completion:
        """The next message of the conversation."""
        time.sleep(THINKING_S)
        return answer(model, messages, tools)


def answer(model: str, messages: Sequence[Any], tools: Sequence[Any]) -> Completion:
    """Search first, then mail what was found, then say so; without tools, write a line about what was asked."""
    bill(f"{model} {len(messages)}")
    question = str(read(messages[0], "content"))
    said = [str(read(message, "content")) for message in messages if read(message, "role") == "tool"]
    names = [str(tool["function"]["name"]) for tool in tools]
    if len(said) < len(names):
        message = Message(None, [next_call(names[len(said)], question, said)])
    else:
        message = Message(f"Done: {said[-1]}" if said else f"A line about {question}.")
    size = sum(len(str(read(one, "content"))) for one in messages)
    return Completion([Choice(message)], Usage(size, len(message.content or "") + 10))


def next_call(name: str, question: str, said: Sequence[str]) -> ToolCall:
    """The call of one tool, with arguments made from what is known so far."""
    arguments = {"query": question} if name == "search" else {"to": "team@example.org", "body": said[-1]}
    return ToolCall(f"call-{len(said)}", Function(name, json.dumps(arguments)))


def bill(line: str) -> None:
    """Write down that this call was paid for."""
    path = os.environ.get("FAKE_LLM_BILL")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def read(message: object, name: str) -> object:
    """A field of a message, which may be a mapping or an object."""
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name)
