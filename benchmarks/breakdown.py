"""Where the time of economy goes: `cockpit.profile` on each of the networks."""

from __future__ import annotations

from collections.abc import Callable

import torch

import cockpit
from benchmarks.cases import CASES, ECONOMY
from benchmarks.tables import Section

NETWORKS = ("mlp", "3c3d", "transformer")
REPEATS = {"mlp": 3, "3c3d": 2, "transformer": 1}


def measured(quick: bool, tick: Callable[[], None]) -> Section:
    """Profile the economy set, by quantity, by need and by layer."""
    text, data = "", {}
    for name in NETWORKS:
        case = CASES[name]
        torch.manual_seed(0)
        problem = case.make(case.samples(quick))
        optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.01, momentum=0.9)
        profile = cockpit.profile(
            problem.model,
            problem.losses,
            ECONOMY,
            optimizer=optimizer,
            repeats=1 if quick else REPEATS[name],
            progress=False,
        )
        text += f"{case.title}\n\n{profile}\n\n"
        data[name] = profile.to_dict()
        tick()
    return Section([], [], data, text)
