"""A recorded call is told as it was written: in the order of its function where the code is here."""

from __future__ import annotations

from typing import Any

import perdure
from perdure import recalled

SORTED = {"amount": 120, "order": "o-9"}


def test_a_call_is_told_in_the_order_of_its_function() -> None:
    @perdure.tool(name="recalled_refund")
    def refund(order: str, amount: int = 1, **more: Any) -> None: ...

    @perdure.agent(name="recalled_clerk")
    async def clerk(order: str, *, amount: int) -> None: ...

    assert recalled.call("recalled_refund", SORTED) == 'recalled_refund(order="o-9", amount=120)'
    assert recalled.call("recalled_clerk", SORTED) == 'recalled_clerk(order="o-9", amount=120)'
    assert recalled.call("recalled_refund", {"order": "o-9"}) == 'recalled_refund(order="o-9")'


def test_what_a_function_takes_by_any_name_is_told_after_what_it_declares() -> None:
    @perdure.tool(name="recalled_mail")
    def mail(to: str, body: str, **headers: str) -> None: ...

    given = {"body": "b", "cc": "c", "reply": "r", "to": "t"}
    assert recalled.call("recalled_mail", given) == 'recalled_mail(to="t", body="b", cc="c", reply="r")'


def test_without_its_code_a_call_is_told_in_the_order_of_its_record() -> None:
    @perdure.tool(name="recalled_pay")
    def pay(order: str) -> None: ...

    assert recalled.call("recalled_nowhere", SORTED) == 'recalled_nowhere(amount=120, order="o-9")'
    assert recalled.call("recalled_pay", SORTED) == 'recalled_pay(amount=120, order="o-9")'
    assert recalled.call("recalled_nowhere", [1]) == "recalled_nowhere([1])"
    assert recalled.call("recalled_nowhere", {"arguments": {"a": 1}, "batch": 2}) == "recalled_nowhere(a=1)"
