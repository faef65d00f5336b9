"""What pictures of curvature have in common: which matrix it is of, and what the optimizer bears."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cockpit.instruments.instrument import Readable
from cockpit.instruments.panel import Array, Line
from cockpit.instruments.reading import before, curve

__all__ = ["descent_bound", "matrix_of", "stability_bound", "usable"]

MATRICES = {"hessian": "Hessian", "ggn": "GGN", "diag_h": "Hessian", "diag_ggn_exact": "GGN"}
"""Of the curvatures that a run file names, what people call the matrix."""


def matrix_of(run: Readable, quantity: str) -> str:
    """Return what a quantity was computed from last: "Hessian", "GGN", or "curvature" if not known."""
    events = run.events()
    bases = events[(events["kind"] == "basis") & (events["subject"] == quantity)]["message"]
    if bases.empty:
        return "curvature"
    curvature = bases.iloc[-1].removeprefix("curvature: ").split(";")[0].split(",")[0]
    return MATRICES.get(curvature, "curvature")


def stability_bound(run: Readable, steps: Array) -> tuple[Line, ...]:
    """Return where the run's optimizer becomes unstable on a quadratic, as an eigenvalue of the Hessian.

    It is 2/η for gradient descent, and (2 + 2β)/((1 − d) η) with momentum β and dampening d, divided by
    1 + 2β for Nesterov's. Adaptive optimizers have no such bound on the Hessian itself (that of
    `PreconditionedSharpness` is theirs), and there is none without a logged learning rate. Where the
    optimizer is not known, it is 2/η, as its label says.

    Source: Cohen et al. (2021), arXiv:2103.00065, appendix B.
    """
    factors = {_factor(optimizer) for optimizer in _optimizers(run)} or {(2.0, "2/η")}
    known = factors.pop()
    return () if factors or known is None else _bound(run, steps, *known)


def descent_bound(run: Readable, steps: Array) -> tuple[Line, ...]:
    """Return 2/η, up to which a step along the gradient lowers the loss; not for adaptive optimizers."""
    if any(optimizer.get("class") != "SGD" for optimizer in _optimizers(run)):
        return ()
    return _bound(run, steps, 2.0, "2/η")


def usable(bound: Array) -> Array:
    """Return a bound with NaN where it is none: an infinite learning rate bounds nothing by 0."""
    return np.where(np.isfinite(bound) & (bound > 0), bound, np.nan)


def _bound(run: Readable, steps: Array, factor: float, label: str) -> tuple[Line, ...]:
    rate = curve(run, "learning_rate")
    if rate is None:
        return ()
    eta = before(rate, steps)
    bound = np.divide(
        factor, eta, out=np.full_like(eta, np.nan), where=(eta > 0) & np.isfinite(eta)
    )
    return () if np.isnan(bound).all() else (Line(steps, bound, label, "neutral", "dashed"),)


def _optimizers(run: Readable) -> list[Mapping[str, Any]]:
    """Return what the run's settings say of its optimizers."""
    found = run.settings.get("optimizers")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _factor(optimizer: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the bound times the learning rate, and what it is called; `None` if there is none."""
    if optimizer.get("class") != "SGD":
        return None
    momentum, dampening = (float(optimizer.get(key) or 0.0) for key in ("momentum", "dampening"))
    if not momentum:
        return 2.0, "2/η"
    if dampening >= 1:
        return None
    factor = (2 + 2 * momentum) / (1 - dampening)
    if optimizer.get("nesterov"):
        return factor / (1 + 2 * momentum), "(2+2β)/((1+2β)η)"
    return factor, "(2+2β)/((1−d)η)" if dampening else "(2+2β)/η"
