"""What a person who explores the package finds: the public names, and a version."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

import perdure
import perdure.sync
import perdure.testing


@pytest.mark.parametrize("package", [perdure, perdure.sync, perdure.testing], ids=lambda package: package.__name__)
def test_dir_lists_the_promise_and_no_module_behind_it(package: types.ModuleType) -> None:
    listed = {name for name in dir(package) if not name.startswith("__")}

    assert listed == set(package.__all__)
    assert not any(isinstance(getattr(package, name), types.ModuleType) for name in listed)


def test_the_package_knows_its_version() -> None:
    assert perdure.__version__.count(".") == 2


@perdure.agent
async def writer(topic: str) -> str:
    return topic


async def test_what_is_handed_out_shows_what_it_is(tmp_path: Path) -> None:
    app = perdure.App(f"{tmp_path}/a.db", agents=[writer])
    async with app:
        handle = await app.start(writer, "owls")
        info = await handle.info()

        assert repr(app) == f"<App of writer on {tmp_path}/a.db>"
        assert repr(handle) == f"<TaskHandle {handle.id}>"
        assert repr(info) == f"<Task {handle.id} writer pending>"
    assert repr(perdure.Client("postgresql://ana:s3cret@db/agents")) == "<Client on postgresql://ana@db/agents>"
    assert repr(perdure.sync.Client("b.db")) == "<Client on b.db>"
