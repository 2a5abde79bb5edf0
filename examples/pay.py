"""High risk: a person is asked before, and what is in doubt afterwards is found out rather than done again.

    python pay.py o-7

It asks whether the customer is entitled and whether 250 may be paid; here a colleague called bot says yes to both. With
`perdure questions` and `perdure approve Q1 --by ana` it is you who decides.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import perdure


class Psp:
    """A payment provider: it knows each refund by the key it was asked with, so it can tell what happened."""

    def __init__(self) -> None:
        self.refunds: dict[str, str] = {}

    async def refund(self, order: str, amount: int, *, key: str) -> str:
        """Pay back."""
        self.refunds[key] = f"r-{len(self.refunds) + 1} ({amount} for {order})"
        return self.refunds[key]

    async def find(self, *, key: str) -> str | None:
        """The refund that was asked for with this key."""
        return self.refunds.get(key)


async def find_refund(doubt: perdure.Doubt) -> perdure.Verdict[str]:
    """What became of a refund that was cut off. Says "it did not happen" never, for it may only not be listed yet."""
    found = await perdure.deps(Psp).find(key=doubt.token)
    return perdure.happened(found) if found else perdure.unknown("not listed yet")


@perdure.tool(risk="high", approve=lambda order, amount: amount > 100, to="finance", reconcile=find_refund, timeout=30)
async def refund(order: str, amount: int) -> str:
    """Pay back. Above 100 finance says yes first."""
    return await perdure.deps(Psp).refund(order, amount, key=perdure.current().token)


@perdure.agent
async def support(order: str) -> str:
    """Handle a complaint."""
    if not await perdure.ask(f"Is the customer of {order} entitled?", type=bool, to="support", expires=7 * 86_400):
        return "not entitled"
    try:
        return await refund(order, 250)
    except perdure.Denied as no:  # Expired is another error: nobody said no.
        return f"refused by {no.by}: {no.reason}"
    except perdure.OutcomeUnknown:  # Someone gave up finding out.
        return "ask the bank"


@asynccontextmanager
async def opened() -> AsyncIterator[Psp]:
    """What a worker opens once: the connection to the provider."""
    yield Psp()


async def agree(question: perdure.Question) -> None:
    """A colleague who always says yes. In earnest this sends a message to whoever is asked."""
    if question.kind == "ask":
        await question.answer(True, by="bot")
    elif question.kind == "call":
        await question.approve(by="bot")


app = perdure.App(agents=[support], lifespan=opened, notify=agree)

if __name__ == "__main__":
    order = " ".join(sys.argv[1:]) or "o-7"
    print(asyncio.run(app.run(support.options(key=order), order)))
