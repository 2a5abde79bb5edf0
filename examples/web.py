"""Web requests start tasks, a worker runs them; the page that asked follows along, also after it was reloaded.

    python web.py 8000
    curl -X POST -H 'Idempotency-Key: r-1' 'localhost:8000/reports?topic=owls'
    curl -N localhost:8000/reports/TASK/events

The server comes with Python and is synchronous, so this uses `perdure.sync`; in an asynchronous framework it is
`client = perdure.Client()`, `lifespan=client.lifespan` and `await client.start(…)`. The worker may as well live
elsewhere: `perdure worker web:app`.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import perdure.sync as perdure


@perdure.tool(risk="low")
def search(query: str) -> list[str]:
    """Find pages."""
    return [f"a page about {query}"]


@perdure.agent
def researcher(topic: str) -> str:
    """Write a report."""
    perdure.stream(f"looking for {topic}")  # Followers see it at once.
    return f"{topic}: {len(search(topic))} page"


app = perdure.App(agents=[researcher])


class Reports(BaseHTTPRequestHandler):
    """POST /reports?topic=… starts one; GET /reports/TASK/events follows it."""

    def do_POST(self) -> None:  # The server calls it by this name.
        """Start a report. The same Idempotency-Key starts it once, however often the request is sent."""
        topic = parse_qs(urlsplit(self.path).query)["topic"][0]
        task = app.start(researcher.options(key=self.headers["Idempotency-Key"]), topic)
        body = json.dumps({"task": task.id}).encode()  # By now every list has it.
        self.send_response(202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:  # The server calls it by this name.
        """Every event after the last one that was seen, in order; ends with the task."""
        task_id = self.path.split("/")[2]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in app.task(task_id).follow(after=int(self.headers.get("Last-Event-ID", "0"))):
            self.wfile.write(event.sse().encode())


def serve(port: int) -> None:
    """Serve until interrupted, with a worker beside the server."""
    with app, app.worker(), ThreadingHTTPServer(("127.0.0.1", port), Reports) as server:
        print(f"listening on port {server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
