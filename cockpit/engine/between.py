"""Keeps the losses of the steps between two looks at them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from cockpit.transforms import Need

REMEMBERED = 256
"""Losses that are kept at most: the last ones."""


class Between:
    """The losses of all steps since somebody last looked, whether anything was due at them or not.

    They are kept where they are: nothing waits for their values.
    """

    def __init__(self) -> None:
        self._losses: deque[Tensor] = deque(maxlen=REMEMBERED)

    def hear(self, loss: Any, passes: int) -> None:
        """Keep the loss of a step, without its graph.

        Args:
            loss: What was given as such. What is no single number is not kept, nor what came before it: the
                next one is no neighbour of that.
            passes: In how many backward passes the batch comes.
        """
        if passes == 1 and isinstance(loss, Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach())
        else:
            self._losses.clear()

    def taken(self, needs: Mapping[str, Iterable[Need]]) -> Sequence[Tensor]:
        """Return the losses since the last look, `[]` each, if one of the needs of a step asks for them."""
        if not any(asks(need) for of_one in needs.values() for need in of_one):
            return ()
        losses = tuple(self._losses)
        self._losses.clear()
        return losses


def asks(need: Need) -> bool:
    """Whether a need looks at the losses between."""
    return bool(getattr(need, "between", False))
