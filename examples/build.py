"""A budget that runs out: children get their share, and one chance to end in good order.

python build.py "a small shop"
"""

from __future__ import annotations

import asyncio
import sys

from fake_llm import AsyncLLM

import perdure

llm = AsyncLLM()


@perdure.agent(budget=perdure.Budget(tokens=2_000))
async def coder(title: str, lines: int) -> str:
    """Write so many lines, one call each; what is written so far counts when the budget ends."""
    text: list[str] = []
    try:
        for number in range(lines):
            prompt = [{"role": "user", "content": f"{title}, line {number}" + " please" * 20}]
            reply = await perdure.model(llm.chat.completions.create, model="small", messages=prompt)
            text.append(reply.choices[0].message.content or "")
    except perdure.BudgetExceeded as over:  # Not caught, the task fails.
        return f"{title}: {len(text)} of {lines} lines, then the budget ended ({over.limit})"
    return f"{title}: {len(text)} lines"


@perdure.agent
async def lead(goal: str) -> list[str]:
    """Have the parts written at once. A part that failed does not take the others along."""
    parts = await perdure.gather(coder(f"{goal}: the API", 3), coder(f"{goal}: the pages", 30), return_exceptions=True)
    return [f"failed: {part}" if isinstance(part, BaseException) else part for part in parts]


app = perdure.App(agents=[lead, coder])

if __name__ == "__main__":
    goal = " ".join(sys.argv[1:]) or "shop"
    print("\n".join(asyncio.run(app.run(lead.options(key=goal), goal))))
