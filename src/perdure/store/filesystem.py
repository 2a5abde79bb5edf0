"""Where a SQLite file may lie: on a local disk, in a folder that only we can read."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

from perdure.errors import BadInput, NetworkFileSystem

# Locks and shared memory cannot be trusted there; WAL needs one host.
_NETWORK = frozenset(
    "nfs nfs4 cifs smb smb2 smb3 smbfs afpfs ncpfs 9p afs ceph coda gfs gfs2 glusterfs lustre ocfs2 beegfs pvfs2 "
    "orangefs gpfs fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse fuse.rclone webdav fuse.davfs2".split()
)


def check_path(path: Path, *, mounts: str | None = None) -> Path:
    """The absolute path of a database file, its folder made if need be (mode 0700).

    `mounts` stands in for the system's table of mounts. Raises BadInput for a path that cannot be a file and
    NetworkFileSystem where locks cannot be trusted.
    """
    # Links are followed: whoever opens the file by another name must find the same lock files beside it.
    path = Path(os.path.realpath(path.expanduser()))
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file in it, for example {path / 'perdure.db'}", field="url")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"the folder {path.parent} cannot be made: {error.strerror}", field="url") from error
    kind = file_system(path.parent, mounts=mounts)
    if kind in _NETWORK:
        raise NetworkFileSystem(
            f"{path} lies on a network file system ({kind}), where SQLite's locks cannot be trusted and two machines "
            "would damage the file. Use a local disk, or PostgreSQL where several machines share the work."
        )
    return path


def create_private(path: Path) -> None:
    """Create `path` with mode 0600 before SQLite opens it, so that it is never readable by others."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return


def make_private(folder: Path) -> None:
    """Make a folder that only we can read, or close one of ours. Raises OSError where it is not a folder of ours.

    For a predictable place where everybody may write: who makes the name first could lead us anywhere by a link.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is not a folder of this user", str(folder))
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def is_private(folder: Path) -> bool:
    """Whether it is a folder of ours, no link, that nobody else may enter."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def file_system(folder: Path, *, mounts: str | None = None) -> str:
    """The kind of file system `folder` lies on, or "" where the system does not say.

    `mounts` is the text of /proc/self/mountinfo, or on macOS of the command `mount`.
    """
    try:
        if sys.platform == "darwin":
            return kind_by_path(folder.resolve(), _mount_command() if mounts is None else mounts)
        device = folder.stat().st_dev
        return kind_by_device(device, Path("/proc/self/mountinfo").read_text() if mounts is None else mounts)
    except (OSError, subprocess.SubprocessError):
        return ""


def kind_by_device(device: int, mounts: str) -> str:
    """The file system of a device number in the text of Linux's mountinfo, or ""."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        words = left.split()
        if len(words) > 2 and words[2] == wanted and right:
            return right.split()[0]
    return ""


def kind_by_path(folder: Path, mounts: str) -> str:
    """The file system of the innermost mount that holds `folder`, in the output of macOS's mount, or ""."""
    depth, kind = 0, ""
    for line in mounts.splitlines():
        # "//user@server/share on /Volumes/share (smbfs, nodev)": a space or " (" may stand in the path, too.
        where, _, options = line.partition(" on ")[2].rpartition(" (")
        if where and folder.is_relative_to(where) and len(Path(where).parts) > depth:
            depth, kind = len(Path(where).parts), options.split(",")[0].rstrip(")")
    return kind


def _mount_command() -> str:
    return subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True).stdout
