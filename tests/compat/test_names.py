"""Every name of Cockpit 1.0 is where it was, and takes what it took."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cockpit
from cockpit import Cockpit, CockpitPlotter, CockpitWarning
from cockpit.errors import InvalidType
from cockpit.quantities import Quantity
from cockpit.schedules import linear

NAMES = {
    "cockpit": ["Cockpit", "CockpitPlotter"],
    "cockpit.cockpit": ["Cockpit"],
    "cockpit.plotter": ["CockpitPlotter"],
    "cockpit.quantities.bin_adaptation": ["NoAdaptation", "GradAbsMax", "ParamAbsMax"],
    "cockpit.utils.configuration": ["configuration", "quantities_cls_for_configuration"],
    "cockpit.utils.schedules": ["linear", "logarithmic"],
}

QUANTITIES: dict[str, dict[str, Any]] = {
    "Alpha": {},
    "CABS": {},
    "Distance": {},
    "EarlyStopping": {"epsilon": 1e-5},
    "GradHist1d": {"bins": 100, "range": (-2, 2), "adapt": None},
    "GradHist2d": {
        "bins": (40, 50),
        "range": ((-1, 1), (-2, 2)),
        "adapt": (None, None),
        "keep_individual": False,
    },
    "GradNorm": {},
    "HessMaxEV": {},
    "HessTrace": {"curvature": "diag_h"},
    "InnerTest": {},
    "Loss": {},
    "MeanGSNR": {"epsilon": 1e-5},
    "NormTest": {},
    "OrthoTest": {},
    "Parameters": {},
    "TICDiag": {"curvature": "diag_h", "epsilon": 1e-7},
    "TICTrace": {"curvature": "diag_h", "epsilon": 1e-7},
    "Time": {},
    "UpdateSize": {},
}
"""Settings by name, in the order in which 1.0 took them, with its defaults."""

REQUIRED = inspect.Parameter.empty

SIGNATURES: dict[str, dict[str, Any]] = {
    "cockpit.utils.configuration.configuration": {
        "label": REQUIRED,
        "track_schedule": None,
        "verbose": False,
    },
    "cockpit.utils.configuration.quantities_cls_for_configuration": {"label": REQUIRED},
    "cockpit.utils.schedules.linear": {"interval": REQUIRED, "offset": 0},
    "cockpit.utils.schedules.logarithmic": {
        "start": REQUIRED,
        "end": REQUIRED,
        "steps": 300,
        "base": 10,
        "init": True,
    },
    "cockpit.plotter.CockpitPlotter": {"secondary_screen": False},
    "cockpit.plotter.CockpitPlotter.plot": {
        "source": REQUIRED,
        "show_plot": True,
        "block": False,
        "save_plot": False,
        "savedir": None,
        "savename": "cockpit",
        "savename_append": None,
        "savefig_kwargs": None,
        "show_log_iter": False,
        "discard": None,
        "plot_title": None,
        "debug": False,
    },
    "cockpit.plotter.CockpitPlotter.build_animation": {
        "logpath": REQUIRED,
        "duration": 200,
        "loop": 0,
    },
    "cockpit.cockpit.Cockpit": {"params": REQUIRED, "quantities": None},
    "cockpit.cockpit.Cockpit.__call__": {
        "global_step": REQUIRED,
        "extensions": REQUIRED,
        "info": None,
        "debug": False,
    },
    "cockpit.cockpit.Cockpit.add": {"quantity": REQUIRED},
    "cockpit.cockpit.Cockpit.create_graph": {"global_step": REQUIRED},
    "cockpit.cockpit.Cockpit.track": {"global_step": REQUIRED, "protected_savefields": None},
    "cockpit.cockpit.Cockpit.log": {
        "global_step": REQUIRED,
        "epoch_count": None,
        "train_loss": None,
        "valid_loss": None,
        "test_loss": None,
        "train_accuracy": None,
        "valid_accuracy": None,
        "test_accuracy": None,
        "learning_rate": None,
    },
    "cockpit.cockpit.Cockpit.write": {"logpath": REQUIRED},
    "cockpit.cockpit.Cockpit.get_output": {},
}

ECONOMY = "Alpha Distance GradHist1d GradNorm InnerTest Loss NormTest OrthoTest UpdateSize"
CONFIGURATIONS = {
    "economy": ECONOMY,
    "business": f"{ECONOMY} TICDiag HessTrace",
    "full": f"{ECONOMY} TICDiag HessTrace HessMaxEV GradHist2d",
}

FROM_1 = Path(__file__).parents[2] / "docs" / "from-1.0.md"


def found(path: str) -> Any:
    """Return what a dotted path names: a module, or what is in one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        owner, _, name = path.rpartition(".")
        return getattr(found(owner), name)


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    named = dict(inspect.signature(function).parameters)
    named.pop("self", None)
    return named


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in NAMES.items() for n in names])
def test_it_is_where_it_was(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("path", SIGNATURES)
def test_it_takes_what_it_took(path: str) -> None:
    got = parameters(found(path))
    expected = SIGNATURES[path]
    assert list(got)[: len(expected)] == list(expected)
    assert {name: got[name].default for name in expected} == expected
    more = list(got.values())[len(expected) :]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in more), "the rest is new"


@pytest.mark.parametrize("name", QUANTITIES)
def test_quantities_take_schedule_verbose_and_settings(name: str) -> None:
    kind = getattr(cockpit.quantities, name)
    settings = QUANTITIES[name]
    assert list(parameters(kind))[: 2 + len(settings)] == ["track_schedule", "verbose", *settings]
    assert parameters(kind)["verbose"].default is False
    schedule = linear(3)
    for quantity in (kind(schedule), kind(schedule, False, *settings.values())):
        assert isinstance(quantity, Quantity)
        assert (quantity.track_schedule, quantity.verbose) == (schedule, False)
    assert kind(track_schedule=schedule, verbose=True, **settings).verbose


@pytest.mark.parametrize(
    ("name", "setting"),
    [(n, s) for n, settings in QUANTITIES.items() for s in settings if s != "curvature"],
)
def test_quantities_keep_their_defaults(name: str, setting: str) -> None:
    quantity = getattr(cockpit.quantities, name)(linear(1))
    assert getattr(quantity, setting) == QUANTITIES[name][setting]


def test_power_iteration_may_be_asked_for() -> None:
    assert cockpit.quantities.HessMaxEV(linear(1), use_power=True)


@pytest.mark.parametrize("name", ["diag_h", "diag_ggn_exact", "diag_ggn_mc"])
@pytest.mark.parametrize("kind", ["HessTrace", "TICDiag", "TICTrace"])
def test_curvatures_keep_their_names(kind: str, name: str) -> None:
    assert getattr(cockpit.quantities, kind)(linear(1), curvature=name).curvature == name


@pytest.mark.parametrize("name", ["GradAbsMax", "ParamAbsMax"])
def test_bin_adaptations_take_a_schedule_and_settings(name: str) -> None:
    kind = getattr(import_module("cockpit.quantities.bin_adaptation"), name)
    adapt = kind(linear(2), padding=0.1, min_size=1e-5)
    assert (adapt.padding, adapt.min_size) == (0.1, 1e-5)
    assert cockpit.quantities.GradHist1d(linear(1), adapt=adapt).adapt == adapt


@pytest.mark.parametrize("label", CONFIGURATIONS)
def test_configurations_are_those_of_1(label: str) -> None:
    module = import_module("cockpit.utils.configuration")
    kinds = module.quantities_cls_for_configuration(label)
    assert {kind.__name__ for kind in kinds} == set(CONFIGURATIONS[label].split())
    schedule = linear(5)
    made = module.configuration(label, schedule, True)
    assert [type(quantity) for quantity in made] == kinds
    assert all(q.track_schedule == schedule and q.verbose for q in made)


# -- what the cockpit itself has ------------------------------------------------------------------


@pytest.fixture
def watch() -> Cockpit:
    return Cockpit(nn.Linear(2, 1), [cockpit.quantities.Loss(linear(2))])


def tracked(watch: Cockpit, step: int, inside: bool = False) -> torch.Tensor:
    loss = torch.stack([p.square().sum() for p in watch.params]).sum()
    with watch(step, info={"loss": loss, "batch_size": 1}):
        loss.backward(create_graph=watch.create_graph(step))
        if inside:
            watch.track(step, protected_savefields=["grad_batch"])
    return loss


def test_params_quantities_and_add(watch: Cockpit) -> None:
    assert [p.shape for p in watch.params] == [(1, 2), (1,)]
    watch.add(cockpit.quantities.GradNorm(linear(1)))
    assert [type(q).__name__ for q in watch.quantities] == ["Loss", "GradNorm"]


def test_output_has_the_metrics_among_the_quantities(watch: Cockpit) -> None:
    loss = tracked(watch, 0)
    watch.log(0, 0.5, None, learning_rate=0.1)
    watch.log(3, test_loss=2.0)
    values = {"Loss": pytest.approx(loss.item()), "epoch_count": 0.5, "learning_rate": 0.1}
    assert watch.output == {0: values, 3: {"test_loss": 2.0}}
    assert watch.get_output() == {0: {"Loss": values["Loss"]}}


def test_a_metric_does_not_hide_the_quantity_of_its_name(watch: Cockpit) -> None:
    loss = tracked(watch, 0)
    watch.log(0, Loss=9.0)
    assert watch.output == {0: {"Loss": pytest.approx(loss.item())}}


@pytest.mark.parametrize("inside", [True, False])
def test_track_beside_the_context_changes_nothing(watch: Cockpit, inside: bool) -> None:
    loss = tracked(watch, 0, inside)
    watch.track(0)
    watch.track(1)  # not due
    assert watch.get_output() == {0: {"Loss": pytest.approx(loss.item())}}


def test_track_without_the_context_says_what_to_do(watch: Cockpit) -> None:
    with pytest.warns(CockpitWarning, match=r"Nothing was tracked at step 2.*with watch\(2, loss"):
        watch.track(2)
    with pytest.raises(InvalidType, match="must be an integer"):
        watch.track("2")  # type: ignore[arg-type]


# -- the page about it ----------------------------------------------------------------------------


def test_names_on_the_page_exist() -> None:
    text = FROM_1.read_text(encoding="utf-8")
    named = set(re.findall(r"`(cockpit\.[A-Za-z_.]*[A-Za-z])", text))
    assert len(named) > 5
    for path in named:
        assert found(path) is not None, path
    for call, owner in (("watch", Cockpit), ("plotter", CockpitPlotter)):
        for name in re.findall(rf"`{call}\.(\w+)", text):
            assert hasattr(owner, name), name
