"""CP502: updates that are too small for the precision of the parameters."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.no_update import moved, update_curves

LOW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
LEAST = 5
SHARE = 0.5
"""Half of the elements that have a gradient stay as they are, in the middle of the steps."""


def check(run: Record) -> Sign | None:
    """Look for parameters of low precision most of which do not move."""
    low = {one.name: one.dtype for one in run.parameters if one.dtype in LOW}
    shares = {
        name: curve
        for name, curve in run.curves("LostUpdates").items()
        if name in low and np.isfinite(curve.values).sum() >= LEAST
    }
    middle = {n: float(np.nanmedian(curve.values[-100:])) for n, curve in shares.items()}
    lost = sorted((n for n, m in middle.items() if m > SHARE), key=lambda n: -middle[n])
    updates = update_curves(run).values()
    if not lost or (updates and not any(moved(curve).any() for curve in updates)):
        return None  # no update at all has other causes
    step = min(int(shares[n].steps[np.isfinite(shares[n].values)][LEAST - 1]) for n in lost)
    evidence = {
        "share of elements that do not move": middle[lost[0]],
        "precision": low[lost[0]],
        "parameters": len(lost),
        "of": len(middle),
    }
    return Sign(step, tuple(lost), evidence, 0.9)


RULE = Rule(
    code="CP502",
    name="lost-updates",
    severity="warning",
    title="Updates are lost to rounding",
    why="They are smaller than half the distance to the next number of this precision, so most elements "
    "stay as they are although they have a gradient.",
    action="Keep the parameters in float32 and compute under torch.autocast, or use an optimizer with "
    "stochastic rounding or Kahan summation.",
    source="Zamirai, Zhang, Aberger & De Sa (2020), arXiv:2010.06192",
    needs=("LostUpdates",),
    check=check,
    least=LEAST,
    explains=("learning-rate-too-low", "stalled", "underfitting", "labels-shuffled"),
    instrument="lost-updates",
)
