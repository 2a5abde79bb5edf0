"""A loop you already have, and three lines that make it survive: the decorator, `model`, `call`.

    python assistant.py "who won?"

Kill it anywhere, with kill -9, then give the same line again. The same key is the same task: the second run joins the
first, or resumes it from its records. If the process died while the mail was being sent, nobody knows whether it went
out, and mail has no undeclared second chance: the run waits for `perdure answer Q1 --happened --result '"m-1"'` (or
`--not-happened`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from fake_llm import AsyncLLM

import perdure

OUTBOX = Path(os.environ.get("OUTBOX", "outbox.txt"))


@perdure.tool(risk="low")
async def search(query: str) -> list[str]:
    """Find pages. Harmless: running it again costs nothing but time."""
    return [f"{query} - the first page", f"{query} - the second page"]


@perdure.tool  # Nothing declared: high. A mail that went out twice cannot be taken back.
async def send_email(to: str, body: str) -> str:
    """Send a mail."""
    post(json.dumps({"to": to, "body": body, "token": perdure.current().token}))
    await asyncio.sleep(float(os.environ.get("MAIL_TAKES_S", "0.05")))
    return "m-1"


def post(line: str) -> None:
    """Where real mail would leave."""
    with OUTBOX.open("a", encoding="utf-8") as outbox:
        outbox.write(line + "\n")


TOOLS: dict[str, perdure.AnyTool] = {"search": search, "send_email": send_email}
SCHEMAS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in TOOLS]
llm = AsyncLLM()


@perdure.agent
async def assistant(question: str) -> str:
    """Answer a question, and mail the answer to the team."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = await perdure.model(llm.chat.completions.create, model="small", messages=messages, tools=SCHEMAS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            result = await perdure.call(TOOLS[call.function.name], **json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


app = perdure.App(agents=[assistant])  # The database: $PERDURE_DB, else perdure.db.

if __name__ == "__main__":
    question = " ".join(sys.argv[1:]) or "who won?"
    print(asyncio.run(app.run(assistant.options(key=question), question)))
