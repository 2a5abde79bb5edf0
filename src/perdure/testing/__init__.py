"""Test agents without the real world: in memory, in virtual time, killed at every commit.

world = World(tools={refund: lambda order, amount: "r-1"}, answers={refund: "approve"})
assert (await world.play(support, "o-7")).result == "r-1"
await world.crash_everywhere(support, "o-7")
"""

from perdure.testing.answers import NOBODY, Answer
from perdure.testing.world import Play, World

__all__ = ["NOBODY", "Answer", "Play", "World"]


def __dir__() -> list[str]:
    """The public names alone: the modules below this one are not part of the promise."""
    return list(__all__)
