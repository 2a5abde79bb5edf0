"""Whether this process was forked off the one that opened a store, asked before every transaction.

The kernel's pid would tell, too, but to ask it takes longer than all other checks together.
"""

from __future__ import annotations

import os


class Forks:
    """How many forks lie between the process that loaded this module and this one."""

    count = 0

    @classmethod
    def _in_child(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_child=Forks._in_child)
