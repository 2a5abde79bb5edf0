"""A desk to work at, and a database with a story."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import codec
from perdure.clock import FakeClock, SeededIds
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.task import Claim, Usage, Wait, WaitKind
from perdure.store import messages, open_store
from tests.command_line import Desk
from tests.world import World, done, packed


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


@pytest.fixture
def world(desk: Desk) -> Iterator[World]:
    """The desk's database, prepared by hand; the clock stands at the present."""
    clock = FakeClock(wall_ms=time.time_ns() // 1_000_000 - 60_000)
    with open_store(str(desk.db), clock=clock, ids=SeededIds(1)) as store:
        yield World(store, clock)


@dataclass
class Story:
    """A lead that waits for a child, which waits for a person; one that nobody can run; one that has ended."""

    lead: Claim
    child: Claim
    question: str
    nightly: str
    ended: Claim


@pytest.fixture
def story(world: World) -> Story:
    lead = world.start()
    children = [world.spawn(lead, f"c{number}") for number in range(2)]
    child = world.claim(children[0].id)
    world.record(child, "look", done(["hit"], usage=Usage(900, 40)), name="search")
    world.begin(child, "pay", name="refund", risk="high", payload=packed({"order": "o-9", "amount": 120}))
    world.store.call(messages.append, child.fence, NewMessage("user", codec.encode("pay \x1b[31mo-9")), step_key="m")
    evidence = {"tool": "refund", "arguments": {"order": "o-9", "amount": 120}, "cause": "it died inside",
                "reconcile": "not listed yet", "started_at": world.clock.now_ms()}  # fmt: skip
    question = world.ask(
        child,
        QuestionKind.STEP_IN_DOUBT,
        text='did refund(order="o-9", amount=120) happen?',
        to="finance",
        step_key="pay",
        evidence=packed(evidence),
    )
    world.set_aside(child, Wait(WaitKind.QUESTION, (question.id,)))
    world.complete(world.claim(children[1].id))
    world.set_aside(lead, Wait(WaitKind.CHILDREN, tuple(one.id for one in children)))
    nightly = world.admit(agent="nightly")
    ended = world.start()
    world.complete(ended, {"answer": 42})
    return Story(lead, child, question.id, nightly.id, ended)
