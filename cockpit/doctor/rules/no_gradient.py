"""CP202: parameters that never get a gradient."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS

LEAST = 3


def check(run: Record) -> Sign | None:
    """Look for parameters whose gradient is zero at all steps, while others have one."""
    gradients = run.curves("GradNorm")
    silent = {
        name: curve
        for name, curve in gradients.items()
        if len(curve.steps) >= LEAST and curve.values[-1] == 0 and (curve.values == 0).all()
    }
    if not silent or len(silent) == len(gradients):
        return None  # of all of them: there is no gradient at all, and other rules say why
    there = run.curves("Wiring", "has_gradient")
    absent = [n for n in silent if n in there and (there[n].values == 0).all()]
    names = tuple(sorted(silent, key=lambda name: name not in absent))
    step = max(int(curve.steps[LEAST - 1]) for curve in silent.values())
    evidence = {
        "parameters without a gradient": len(absent),
        "parameters with a gradient of zeros": len(silent) - len(absent),
        "of": len(gradients),
    }
    return Sign(step, names, evidence, 0.95 if absent else 0.7)


RULE = Rule(
    code="CP202",
    name="no-gradient",
    severity="warning",
    title="Parameters never get a gradient",
    why="They are meant to be trained, and the loss does not depend on them: they stay as they were "
    "initialised.",
    action="Look for detach(), .data, torch.no_grad() or a conversion to numpy between these parameters "
    "and the loss, and for a layer that is never called. With gradients of zeros, look at whether the "
    "units behind them are dead. Set requires_grad=False where it is meant.",
    source="definition: the gradient is zero, or there is none, at every tracked step",
    needs=("GradNorm",),
    check=check,
    least=LEAST,
    explains=SYMPTOMS,
    spreads=True,
    instrument="grad-norm-layers",
)
