"""The name that a script's classes go by on record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from perdure.codec import modules


@pytest.fixture(autouse=True)
def another_process() -> Iterator[None]:
    """What a script is called is found out once in each process."""
    modules._script.cache_clear()
    yield
    modules._script.cache_clear()


def run_as_script(monkeypatch: pytest.MonkeyPatch, *, file: str | None = None, spec: str | None = None) -> ModuleType:
    """A module in place of the one that Python was started with."""
    script = ModuleType("__main__")
    script.__file__ = file
    script.__spec__ = None if spec is None else ModuleSpec(spec, None)
    monkeypatch.setitem(sys.modules, "__main__", script)
    return script


@pytest.mark.parametrize(
    ("file", "spec", "name"),
    [
        ("/home/ana/shop.py", None, "shop"),
        ("shop.py", "stores.shop", "stores.shop"),
        ("stores/__main__.py", "stores.__main__", "stores.__main__"),
        ("/usr/bin/shop", None, "__main__"),
        ("/home/ana/shop-2.py", None, "__main__"),
        (None, None, "__main__"),  # a notebook, or python -c
    ],
)
@pytest.mark.parametrize("known_as", ["__main__", "__mp_main__"])
def test_a_script_is_found_by_the_name_it_is_recorded_under(
    monkeypatch: pytest.MonkeyPatch, file: str | None, spec: str | None, name: str, known_as: str
) -> None:
    script = run_as_script(monkeypatch, file=file, spec=spec)
    monkeypatch.setitem(sys.modules, "__mp_main__", script)

    recorded = modules.recorded_name(known_as)

    assert recorded == (known_as if name == "__main__" else name)
    assert modules.loaded(recorded) is script


def test_a_script_that_was_imported_beside_keeps_its_classes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    script, beside = run_as_script(monkeypatch, file="shop.py"), ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", beside)

    assert modules.recorded_name("__main__") == "__main__"
    assert (modules.loaded("__main__"), modules.loaded("shop")) == (script, beside)


def test_a_script_that_is_imported_beside_later_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    script = run_as_script(monkeypatch, file="shop.py")
    assert modules.recorded_name("__main__") == "shop"
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))

    assert modules.recorded_name("__main__") == "shop"
    assert modules.loaded("shop") is script


def test_other_modules_go_by_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    run_as_script(monkeypatch, file="shop.py")

    assert modules.recorded_name("stores.shop") == "stores.shop"
    assert modules.loaded("no.such.module") is None
