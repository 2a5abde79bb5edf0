"""The loop of assistant.py without `async`: the same names, blocking.

python sync_assistant.py "who won?"

Kill it anywhere, with kill -9, then give the same line again.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from fake_llm import LLM

import perdure.sync as perdure


@perdure.tool(risk="low")
def search(query: str) -> list[str]:
    """Find pages in two places at once."""
    return [page for found in perdure.gather(look.bind("web", query), look.bind("wiki", query)) for page in found]


@perdure.tool(risk="low")
def look(place: str, query: str) -> list[str]:
    """Find pages in one place."""
    return [f"{query} - a page of the {place}"]


TOOLS: dict[str, perdure.AnyTool] = {"search": search}
SCHEMAS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in TOOLS]
llm = LLM()


@perdure.agent
def assistant(question: str) -> str:
    """Answer a question."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = perdure.model(llm.chat.completions.create, model="small", messages=messages, tools=SCHEMAS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            result = perdure.call(TOOLS[call.function.name], **json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


app = perdure.App(agents=[assistant])

if __name__ == "__main__":
    question = " ".join(sys.argv[1:]) or "owls"
    print(app.run(assistant.options(key=question), question))
