"""A message: one line of a task's transcript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

ROLES: Final = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """A line said by system, user, assistant or tool. `seq` is unique in its task, from 0."""

    task_id: str
    seq: int
    role: str
    content: Any
    reasoning: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    tool_calls: Any = None
    step_key: str | None = None
    at_step: int = 0
    created_at: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The message in the shape that chat models take; empty fields are left out."""
        full = {
            "role": self.role,
            "content": self.content,
            "tool_calls": self.tool_calls,
            "tool_call_id": self.tool_call_id,
            "name": self.tool_name,
        }
        return {name: value for name, value in full.items() if value is not None or name == "content"}


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be appended; `content` and `tool_calls` are encoded already."""

    role: str
    content: bytes
    reasoning: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    tool_calls: bytes | None = None
    created_at_ms: int | None = None
