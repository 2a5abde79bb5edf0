"""What a person who explores the package finds: the public names, and a version."""

from __future__ import annotations

import types

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
