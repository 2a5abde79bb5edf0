"""The scenario of the demo when nobody names recorded runs: an invented refund desk, travel agency and research team.

Reads, calls that change the world, failures, calls in parallel, and subagents, with nothing random in it.
"""

from __future__ import annotations

from perdure.demo.scripts import Call, Line, Script

_ORDERS = (("o-7", "Mara Lind", 40), ("o-9", "Joe Okafor", 120), ("o-12", "Pia Reis", 75), ("o-15", "Sam Cole", 310))
_TRIPS = (
    ("Lisbon", "TP 531", "Casa Azul"),
    ("Oslo", "SK 802", "Fjord Inn"),
    ("Kyoto", "JL 044", "Maple House"),
    ("Quito", "LA 273", "Hotel Sol"),
)
_TOPICS = (
    ("battery storage", ("lithium iron phosphate", "sodium ion", "flow batteries")),
    ("night trains", ("sleeping cars", "track access charges")),
    ("sea ice", ("satellite altimetry", "summer minimum", "shipping routes")),
)


def scenario() -> list[Script]:
    """Every script, children among them."""
    return [
        *(_refund(order, name, amount) for order, name, amount in _ORDERS),
        *(_trip(city, flight, hotel) for city, flight, hotel in _TRIPS),
        *(script for topic, questions in _TOPICS for script in _research(topic, questions)),
        _invoices(),
    ]


class _Story:
    """Writes a script line by line; each answer of the model is followed by the results of its calls."""

    def __init__(self, run: str, title: str) -> None:
        self._run, self._title = run, title
        self._lines: list[Line] = []
        self._count = 0

    def say(self, role: str, text: str) -> None:
        self._lines.append(Line(role, text))

    def ask(self, text: str | None, *calls: Call) -> None:
        """The model's answer, with the calls it makes at once."""
        numbered = [self._numbered(call) for call in calls]
        asked = tuple(_asked(call) for call in numbered)
        self._lines.append(Line("assistant", text, asked, tuple(numbered)))
        self._lines += [Line("tool", answers=call.id, tool_call_id=call.id, tool_name=call.name) for call in numbered]

    def end(self, text: str, *, error: str | None = None) -> Script:
        """The last answer, which the run returns, unless it ends with an error."""
        self._lines.append(Line("assistant", text))
        return Script(self._run, self._title, tuple(self._lines), None if error else text, error)

    def _numbered(self, call: Call) -> Call:
        self._count += 1
        return Call(f"call-{self._count}", call.name, call.arguments, call.content, call.failed, call.child)


def _asked(call: Call) -> dict[str, object]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _call(name: str, content: object, /, **arguments: object) -> Call:
    return Call("", name, arguments, content)


def _failing(name: str, error: str, /, **arguments: object) -> Call:
    return Call("", name, arguments, error, failed=True)


def _subagent(child: Script) -> Call:
    prompt = next(line.content for line in child.lines if line.role == "user")
    content = child.result if child.error is None else child.error
    return Call("", "Task", {"prompt": prompt}, content, child.error is not None, child.id)


def _refund(order: str, name: str, amount: int) -> Script:
    story = _Story(f"refund {order}", "refund desk")
    story.say("system", "You are the refund desk. Look before you pay, and tell the customer what you did.")
    story.say("user", f"Order {order} arrived broken, please give me my money back. {name}")
    story.ask(
        "Let me look at the order and at you.",
        _call("get_order", {"order": order, "amount": amount, "paid_by": "card"}, order=order),
        _call("find_customer", {"name": name, "since": 2021}, name=name),
    )
    story.ask(None, _call("calculate", str(amount), expression=f"{amount} * 1.0"))
    if amount > 300:
        story.ask(
            "This goes back to your card.",
            _failing("refund", f"Error: the card of {order} has expired", order=order, amount=amount),
        )
        story.ask(
            "The card has expired, so you get credit.", _call("add_credit", f"c-{order}", name=name, amount=amount)
        )
    else:
        story.ask("This goes back to your card.", _call("refund", f"r-{order}", order=order, amount=amount))
    story.ask(None, _call("get_order", {"order": order, "amount": amount, "state": "closed"}, order=order))
    story.ask(
        None,
        _call("send_email", "sent", to=name, text=f"We have settled {order}."),
        _call("close_case", "closed", order=order),
    )
    return story.end(f"{name}, {order} is settled.")


def _trip(city: str, flight: str, hotel: str) -> Script:
    story = _Story(f"trip to {city}", "travel agency")
    story.say("system", "You book trips. Never book before you have looked.")
    story.say("user", f"Two nights in {city}, please, next weekend.")
    story.ask(
        f"I look for flights and beds in {city}.",
        _call("search_flights", [{"flight": flight, "price": 210}], to=city),
        _call("search_hotels", [{"hotel": hotel, "price": 95}], city=city),
        _call("search_weather", {"city": city, "sun": 0.7}, city=city),
    )
    story.say("assistant", "Shall I take these?")
    story.say("user", "Yes, both.")
    story.ask(
        "I book both at once.",
        _call("book_flight", {"flight": flight, "seat": "14A"}, flight=flight),
        _call("book_hotel", {"hotel": hotel, "nights": 2}, hotel=hotel, nights=2)
        if city != "Oslo"
        else _failing("book_hotel", "Error: no rooms left", hotel=hotel, nights=2),
    )
    if city == "Oslo":
        story.ask(
            "That one is full. Another one, then.",
            _call("book_hotel", {"hotel": "Harbour Rooms"}, hotel="Harbour Rooms", nights=2),
        )
    story.ask(None, _call("charge_card", f"paid-{city}", city=city, amount=400))
    story.ask(None, _call("send_itinerary", "sent", city=city))
    return story.end(f"You fly to {city} with {flight}.")


def _research(topic: str, questions: tuple[str, ...]) -> list[Script]:
    children = [_reading(topic, question) for question in questions]
    story = _Story(f"report on {topic}", "research lead")
    story.say("user", f"Write a page on {topic}.")
    story.ask("I send people out to read.", *(_subagent(child) for child in children))
    story.ask("Now I write.", _call("Write", "ok", path=f"{topic}.md", text=f"What we know of {topic}."))
    story.ask(None, _call("publish", f"page-{len(topic)}", path=f"{topic}.md"))
    return [*children, story.end(f"The page on {topic} is out.")]


def _reading(topic: str, question: str) -> Script:
    story = _Story(f"reading on {question}", "researcher")
    story.say("user", f"What is known of {question}, as far as {topic} goes?")
    sources = ("journal", "archive", "newspaper")
    story.ask(
        None, *(_call("WebSearch", [f"{source} on {question}"], query=f"{question} {source}") for source in sources)
    )
    story.ask(None, *(_call("WebFetch", f"{len(question)} pages", url=f"{source}/{question}") for source in sources))
    story.ask("Worth keeping.", _call("save_note", "saved", topic=topic, note=f"{question} matters"))
    if question == "shipping routes":
        return story.end("I give up.", error="the archive is closed")
    return story.end(f"{question} matters for {topic}.")


def _invoices() -> Script:
    story = _Story("invoices of May", "book-keeping")
    story.say("user", "Send out the invoices of May.")
    story.ask(None, _call("list_invoices", [f"i-{number}" for number in range(1, 9)], month="May"))
    story.ask("All at once.", *(_call("send_invoice", f"sent i-{n}", invoice=f"i-{n}") for n in range(1, 9)))
    story.ask(None, _call("close_month", "closed", month="May"))
    return story.end("May is closed.")
