"""Where a SQLite file may lie: on a local disk, in a folder that only we can read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from perdure.errors import BadInput, NetworkFileSystem

# Locks and shared memory cannot be trusted there; WAL needs one host.
_NETWORK = frozenset(
    "nfs nfs4 cifs smb smb2 smb3 smbfs afpfs ncpfs 9p afs ceph coda gfs gfs2 glusterfs lustre ocfs2 beegfs pvfs2 "
    "orangefs gpfs fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse fuse.rclone webdav fuse.davfs2".split()
)


def check_path(path: Path) -> Path:
    """The absolute path of a database file, its folder made if need be (mode 0700).

    Raises BadInput for a path that cannot be a file and NetworkFileSystem where locks cannot be trusted.
    """
    path = Path(os.path.abspath(path.expanduser()))
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file in it, for example {path / 'perdure.db'}", field="url")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"the folder {path.parent} cannot be made: {error.strerror}", field="url") from error
    kind = file_system(path.parent)
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


def file_system(folder: Path) -> str:
    """The kind of file system `folder` lies on, or "" where the system does not say."""
    if sys.platform == "darwin":
        return _from_mount_command(folder)
    try:
        device = os.stat(folder).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if left.split()[2] == wanted:
                return right.split()[0]
    except (OSError, IndexError):
        return ""
    return ""


def _from_mount_command(folder: Path) -> str:
    try:
        lines = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    best = ("", "")
    for line in lines.splitlines():
        where, _, rest = line.partition(" on ")[2].partition(" (")
        if str(folder).startswith(where) and len(where) > len(best[0]):
            best = (where, rest.split(",")[0])
    return best[1]
