"""How attention spreads over its keys, head by head."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import number

__all__ = ["panel"]


@instrument("AttentionStats")
def panel(run: Readable) -> Panel | None:
    """Return the entropy as a heat map, head × step."""
    frame = run.arrays("AttentionStats")
    frame = frame[frame["part"].str.startswith("entropy")]
    if frame.empty:
        return None
    modules = list(dict.fromkeys(frame["part"]))
    heads = {m: max(np.size(v) for v in frame["value"][frame["part"] == m]) for m in modules}
    steps, column = np.unique(frame["step"].to_numpy(float), return_inverse=True)
    start = dict(zip(modules, np.cumsum([0, *heads.values()]).tolist(), strict=False))
    values = np.full((sum(heads.values()), len(steps)), np.nan)
    for place, part, entropy in zip(column, frame["part"], frame["value"], strict=True):
        values[start[part] : start[part] + np.size(entropy), place] = np.ravel(entropy)
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
