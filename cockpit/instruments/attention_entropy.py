"""How attention spreads over its keys, head by head."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import arrays, number

__all__ = ["panel"]


@instrument("AttentionStats", name="attention-entropy")
def panel(run: Readable) -> Panel | None:
    """Return the entropy as a heat map, head × step."""
    parts = [p for p in run.parts("AttentionStats", "array") if p.startswith("entropy")]
    found = {part: arrays(run, "AttentionStats", part) for part in parts}
    steps = np.array(sorted(set().union(*found.values())), float)
    if not len(steps):
        return None
    heads = {part: max(map(np.size, of_part.values())) for part, of_part in found.items()}
    values = np.full((sum(heads.values()), len(steps)), np.nan)
    start = dict(zip(heads, np.cumsum([0, *heads.values()]).tolist(), strict=False))
    for part, of_part in found.items():
        for place, entropy in zip(
            np.searchsorted(steps, list(of_part)), of_part.values(), strict=True
        ):
            values[start[part] : start[part] + entropy.size, place] = entropy.ravel()
    names = [
        f"{module.removeprefix('entropy').lstrip('/')} {head}".lstrip()
        for module, count in heads.items()
        for head in range(count)
    ]
    last = values[np.isfinite(values[:, -1]), -1]
    return Panel(
        title="Attention entropy by head",
        group="ACTIVATIONS",
        how_to_read="0 looks at one key, the logarithm of their number at all alike; an early fall "
        "to 0 is a collapse.",
        marks=(
            Heat(
                steps,
                values,
                "entropy [nat]",
                names=tuple(names),
                limits=(0.0, float(np.nanmax(values, initial=1e-3))),
            ),
        ),
        headline=f"lowest {number(float(last.min()))}" if last.size else "",
    )
