"""A child whose agent nobody has: `app.run` raises, a worker warns, and the task goes on once somebody has it."""

from __future__ import annotations

import pytest

import perdure
from perdure.errors import BadInput
from perdure.news import News
from perdure.states import TaskStatus
from tests.theatre import Theatre


@perdure.agent
async def helper(x: int) -> int:
    return x + 1


@perdure.agent
async def host(x: int) -> int:
    return await helper(x)


async def test_a_run_whose_child_nobody_can_run_raises_and_leaves_the_task_open(house: Theatre) -> None:
    with pytest.raises(BadInput, match=r"no live worker has agent helper, which host ….* waits for") as refused:
        await perdure.App(store=house.store, agents=[host]).run(host.options(key="k"), 1)

    assert refused.value.field == "agents"
    assert "App(agents=[…])" in str(refused.value)
    assert {one.status for one in await house.client.tasks(open=True)} == {TaskStatus.PENDING}
    assert await perdure.App(store=house.store, agents=[host, helper]).run(host.options(key="k"), 1) == 2


async def test_a_run_waits_for_a_child_that_another_worker_has(house: Theatre) -> None:
    await house.hire(helper)

    assert await perdure.App(store=house.store, agents=[host]).run(host, 1) == 2


async def test_a_worker_warns_and_goes_on_when_somebody_comes_who_has_it(
    house: Theatre, caplog: pytest.LogCaptureFixture
) -> None:
    news = News(counts_only=True)
    await house.hire(host, on_event=news.hear)
    task = await house.client.start(host, 1)
    await house.until(news.lines)

    await house.hire(helper)

    assert await task.result() == 2
    (line,) = news.lines()
    assert line.startswith("no live worker has agent helper, which host …")
    assert "no live worker has agent helper" in caplog.text
