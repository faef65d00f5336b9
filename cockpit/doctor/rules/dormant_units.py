"""CP604: units that do next to nothing beside the others of their layer."""

from __future__ import annotations

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_layers import FEW, few_samples, lasting, units_of

SHARE = 0.5
"""Of the units of a layer, beyond those that are dead. Trainings that go well have up to 0.38."""


UNITS = 8
"""Without so many in a layer a share says little."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for modules before the last one of which most units are dormant and not dead.

    At the first step it is the initialisation; later on it has to last.
    """
    dormant, dead = run.curves("ActivationStats", "dormant"), run.curves("ActivationStats", "dead")
    if not dormant or not dead:
        return NotKnown(
            "the outputs of modules were not seen; track ActivationStats, give the model"
        )
    if few_samples(run):
        return NotKnown(FEW)
    shares = {
        name: Curve(curve.steps, curve.values - dead[name].values)
        for name, curve in list(dormant.items())[:-1]
        if (units_of(run, name) or UNITS) >= UNITS
        and name in dead
        and len(dead[name].steps) == len(curve.steps)
    }
    at_once = lasting(shares, lambda share: share[:1] > SHARE, 1)
    found = at_once or lasting(shares, lambda share: share > SHARE)
    if found is None:
        return None
    step, places = found
    worst = {name: float(shares[name].values[place]) for name, place in places.items()}
    names = sorted(worst, key=lambda name: -round(worst[name], 1))
    evidence = {"share of dormant units": worst[names[0]], "modules": len(names)}
    return Sign(step, tuple(names), evidence, 0.8)


RULE = Rule(
    code="CP604",
    name="dormant-units",
    severity="warning",
    title="Most units are dormant",
    why="Their output is below a fortieth of the average unit's: the layer works as if it were much smaller.",
    action="Look at how the layer was initialised: do all units have weights of one size? If they fell asleep "
    "during the training, lower the learning rate, or reinitialise the dormant units.",
    source='Sokar, Agarwal, Castro & Evci (2023), "The Dormant Neuron Phenomenon in Deep Reinforcement Learning"',
    needs=("ActivationStats",),
    check=check,
    instrument="activation-dormant",
)
