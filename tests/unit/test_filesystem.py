"""A SQLite file lies on a local disk, in a folder that only we can read, or it is refused before it exists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.errors import BadInput, NetworkFileSystem
from perdure.store.filesystem import check_path, create_private, file_system, kind_by_device, kind_by_path

MACOS = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
devfs on /dev (devfs, local, nobrowse)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)
//user@server/share on /Volumes/share (smbfs, nodev, nosuid, mounted by user)
server:/export on /Volumes/on site (old) (nfs, nodev, nosuid)
"""


def _mounts(folder: Path, kind: str) -> str:
    """A table of mounts as Linux prints it, in which `folder` lies on a file system of this kind."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return (
        "21 1 0:19 / /sys rw,nosuid - sysfs sysfs rw\n"
        f"22 1 {number} / {folder} rw,relatime shared:1 master:2 - {kind} server:/share rw\n"
        "a line that nobody has seen yet\n"
    )


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "ceph"])
def test_a_network_file_system_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NetworkFileSystem, match=f"network file system \\({kind}\\)"):
        check_path(tmp_path / "agents.db", mounts=_mounts(tmp_path, kind))

    assert not (tmp_path / "agents.db").exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs"])
def test_a_local_file_system_is_taken(tmp_path: Path, kind: str) -> None:
    assert check_path(tmp_path / "agents.db", mounts=_mounts(tmp_path, kind)) == tmp_path / "agents.db"


def test_a_file_system_that_the_system_does_not_name_is_taken(tmp_path: Path) -> None:
    assert kind_by_device(tmp_path.stat().st_dev, "") == ""
    assert check_path(tmp_path / "agents.db", mounts="") == tmp_path / "agents.db"


def test_this_machine_says_where_a_folder_lies(tmp_path: Path) -> None:
    assert file_system(tmp_path) != ""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/Users/me", "apfs"),
        ("/Volumes/share/work", "smbfs"),
        ("/Volumes/share", "smbfs"),
        ("/Volumes/shared", "apfs"),  # only begins with the name of a mount
        ("/Volumes/on site (old)/x", "nfs"),
        ("/dev", "devfs"),
    ],
)
def test_on_macos_the_innermost_mount_counts(folder: str, kind: str) -> None:
    assert kind_by_path(Path(folder), MACOS) == kind


def test_a_folder_is_refused_and_a_file_in_it_proposed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"perdure\.db") as refusal:
        check_path(tmp_path)

    assert refusal.value.field == "url"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(BadInput, match="cannot be made") as refusal:
        check_path(tmp_path / "file" / "below" / "agents.db")

    assert refusal.value.field == "url"


def test_folders_and_files_are_ours_alone(tmp_path: Path) -> None:
    path = check_path(tmp_path / "new" / "agents.db")

    create_private(path)

    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    path.write_text("content")
    path.chmod(0o640)

    create_private(path)

    assert path.read_text() == "content"
    assert path.stat().st_mode & 0o777 == 0o640
