"""The bell between processes rings in a folder of ours alone, and deletes nothing but what it made."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.store.wakeup import Wakeup

DATABASE = Path("/nowhere/agents.db")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files where everybody may write. Short, as the path of a socket must be."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-w", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def precious(shared: Path) -> Path:
    """A folder of ours with files that nothing may delete."""
    folder = shared / "precious"
    folder.mkdir(mode=0o700)
    (folder / "thesis.txt").write_text("x")
    return folder


def bell() -> Wakeup:
    return Wakeup(DATABASE)


def place(shared: Path) -> Path:
    """The folder where the bells of the database meet."""
    one = bell()
    one.listen(lambda: None)
    (base,) = shared.glob(f"perdure-{os.geteuid()}")
    (found,) = base.iterdir()
    one.close()
    return found


def test_a_hint_reaches_another_listener(shared: Path) -> None:
    heard = threading.Event()
    listener, teller = bell(), bell()
    listener.listen(heard.set)

    teller.tell()

    assert heard.wait(10)
    assert stat.S_IMODE(place(shared).parent.stat().st_mode) == 0o700
    listener.close()
    teller.close()


@pytest.mark.parametrize("is_outer", [True, False], ids=["the outer folder", "the inner folder"])
def test_a_link_in_the_place_of_the_folder_leads_nowhere(shared: Path, precious: Path, is_outer: bool) -> None:
    folder = place(shared)
    target = precious
    if is_outer:
        target = precious / folder.name
        target.mkdir(mode=0o700)
        (target / "keys.txt").write_text("x")
        folder = folder.parent
    shutil.rmtree(folder)
    folder.symlink_to(precious)
    before = sorted(os.listdir(target))

    one = bell()
    one.tell()
    one.listen(lambda: None)
    one.tell()

    assert sorted(os.listdir(target)) == before
    one.close()


def test_a_folder_that_others_may_enter_is_not_trusted_until_it_is_closed(shared: Path) -> None:
    folder = place(shared)
    folder.parent.chmod(0o777)
    left = folder / "left"
    _leave_socket(left)

    teller, listener = bell(), bell()
    teller.tell()
    was_left_alone = left.exists()
    listener.listen(lambda: None)
    teller.tell()

    assert was_left_alone
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert not left.exists()
    teller.close()
    listener.close()


def test_only_sockets_that_nobody_listens_at_are_deleted(shared: Path) -> None:
    folder = place(shared)
    _leave_socket(folder / "left")
    (folder / "notes.txt").write_text("x")
    (folder / "link").symlink_to("left")

    one = bell()
    one.tell()

    assert sorted(os.listdir(folder)) == ["link", "notes.txt"]
    one.close()


def _leave_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
