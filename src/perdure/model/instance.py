"""An instance: one live worker process, known by its generation and watched by its heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from perdure.states import InstanceStatus

Row = tuple[Any, ...]


class InstanceType(StrEnum):
    """What a process does among the others; perdure's own workers are executors."""

    ORCHESTRATOR = "orchestrator"
    EXECUTOR = "executor"
    RESEARCHER = "researcher"
    ARCHITECT = "architect"
    VALIDATOR = "validator"
    DOCUMENTOR = "documentor"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance's row. `heartbeat` counts beats; observers watch it change and compare no clocks."""

    id: str
    type: InstanceType
    status: InstanceStatus
    host: str
    boot_id: str
    pid: int
    generation: int
    killable: bool
    heartbeat: int
    heartbeat_at: int
    started_at: int
    stopped_at: int | None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """Read a row selected with the columns of this class, in order."""
        return cls(*(row[0], InstanceType(row[1]), InstanceStatus(row[2]), *row[3:7], bool(row[7]), *row[8:]))
