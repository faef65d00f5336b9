"""A training script in the style of Cockpit 1.0 runs as it is, with parameters and with the model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backpack import extend, extensions
from torch import nn

from cockpit import Cockpit, CockpitPlotter, open_run, quantities
from cockpit.plotting import animation
from cockpit.quantities.bin_adaptation import GradAbsMax
from cockpit.utils.configuration import configuration
from cockpit.utils.schedules import linear, logarithmic

pytestmark = pytest.mark.filterwarnings(
    # BackPACK's hooks on a first layer whose input needs no gradient
    "ignore:Full backward hook is firing when gradients are computed:UserWarning"
)

STEPS = 12
TRACKED: dict[str, Callable[[nn.Module], Any]] = {
    "parameters": lambda model: model.parameters(),
    "model": lambda model: model,
}
Output = dict[int, dict[str, Any]]


def script(tracked: Callable[[nn.Module], Any], logpath: str) -> tuple[Output, list[torch.Tensor]]:
    """Train as one did with Cockpit 1.0; only what is handed to `Cockpit` differs."""
    torch.manual_seed(0)
    images, labels = torch.rand(48, 1, 6, 6).double(), torch.randint(4, (48,))

    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5), nn.Sigmoid(), nn.Linear(5, 4)
    )
    model = extend(model.double())
    lossfunc = extend(nn.CrossEntropyLoss(reduction="mean"))
    individual_lossfunc = extend(nn.CrossEntropyLoss(reduction="none"))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    config = configuration("economy", track_schedule=linear(interval=2))
    cockpit = Cockpit(tracked(model), quantities=config)
    for quantity in (
        quantities.CABS(linear(2)),
        quantities.EarlyStopping(linear(2), epsilon=1e-4),
        quantities.GradHist2d(linear(4), bins=(6, 7), adapt=(GradAbsMax(linear(1)), None)),
        quantities.HessMaxEV(logarithmic(0, 1, steps=5), verbose=False),
        quantities.HessTrace(linear(4), curvature="diag_h"),
        quantities.MeanGSNR(linear(2), False, 1e-4),
        quantities.Parameters(linear(6)),
        quantities.TICDiag(linear(4), curvature="diag_ggn_exact"),
        quantities.TICTrace(linear(4), curvature="diag_h", epsilon=1e-6),
        quantities.Time(linear(1)),
    ):
        cockpit.add(quantity)
    plotter = CockpitPlotter()

    variances = []
    for global_step in range(STEPS):
        batch = torch.randint(48, (8,))
        inputs, targets = images[batch], labels[batch]
        opt.zero_grad()
        outputs = model(inputs)
        loss = lossfunc(outputs, targets)
        losses = individual_lossfunc(outputs, targets)

        with cockpit(
            global_step,
            extensions.Variance(),
            info={
                "batch_size": inputs.shape[0],
                "individual_losses": losses,
                "loss": loss,
                "optimizer": opt,
            },
            debug=global_step == 0,
        ):
            loss.backward(create_graph=cockpit.create_graph(global_step))
        variances.append(torch.cat([p.variance.flatten() for p in cockpit.params]))

        opt.step()

        if global_step % 4 == 0:
            accuracy = (outputs.argmax(1) == targets).double().mean().item()
            cockpit.log(
                global_step,
                global_step / 6,
                loss.item(),
                None,
                math.nan,
                accuracy,
                None,
                None,
                0.05,
            )

    plotter.plot(
        cockpit,
        savedir=str(Path(logpath).parent),
        show_plot=False,
        save_plot=True,
        savename_append="_done",
        show_log_iter=True,
        discard=7,
    )
    cockpit.write(logpath)
    plotter.plot(logpath + ".json", show_plot=False, block=False)
    plotter.build_animation(logpath + ".json", duration=100, loop=1)
    return cockpit.get_output(), variances


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Output, list[Any], Path]]:
    done = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(animation, "FRAMES", 1)
        for name, tracked in TRACKED.items():
            folder = tmp_path_factory.mktemp(name)
            done[name] = (*script(tracked, str(folder / "logs" / "run")), folder / "logs")
    return done


KINDS = sorted(set(quantities.__all__) & {
    *("Alpha", "CABS", "Distance", "EarlyStopping", "GradHist1d", "GradHist2d", "GradNorm"),
    *("HessMaxEV", "HessTrace", "InnerTest", "Loss", "MeanGSNR", "NormTest", "OrthoTest"),
    *("Parameters", "TICDiag", "TICTrace", "Time", "UpdateSize"),
})  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_both_give_equal_values(runs: dict[str, Any], kind: str) -> None:
    of_parameters, of_model = (
        {step: values[kind] for step, values in runs[name][0].items() if kind in values}
        for name in TRACKED
    )
    assert of_parameters, "it was tracked"
    assert set(of_parameters) == set(of_model)
    if kind != "Time":
        for step, value in of_parameters.items():
            same(of_model[step], value)


def same(got: Any, expected: Any) -> None:
    """Compare values that are numbers, arrays, lists or dicts."""
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            same(got[key], expected[key])
    elif isinstance(expected, list):
        for one, other in zip(got, expected, strict=True):
            same(one, other)
    elif np.asarray(expected).dtype.kind in "iu":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-14)


def test_outputs_keep_their_shape(runs: dict[str, Any]) -> None:
    output = runs["parameters"][0]
    first = output[0]
    for name in ("Distance", "GradNorm", "HessTrace", "UpdateSize"):
        assert [type(value) for value in first[name]] == [float] * 6, name
    for name in ("Alpha", "CABS", "EarlyStopping", "Loss", "MeanGSNR", "TICDiag", "TICTrace"):
        assert isinstance(first[name], float), name
    assert isinstance(output[1]["HessMaxEV"], float)
    assert isinstance(output[1]["Time"], float)
    assert [value.shape for value in first["Parameters"]] == [
        *((2, 1, 3, 3), (2,)),
        *((5, 32), (5,)),
        *((4, 5), (4,)),
    ]
    assert list(first["GradHist1d"]) == ["hist", "edges"]
    assert first["GradHist1d"]["hist"].sum() == 8 * (20 + 165 + 24)
    assert first["GradHist2d"]["hist"].shape == (6, 7)
    assert [len(edges) for edges in first["GradHist2d"]["edges"]] == [7, 8]
    assert sorted(step for step, values in output.items() if "GradHist2d" in values) == [0, 4, 8]


def test_extensions_of_the_user_run_along(runs: dict[str, Any]) -> None:
    of_parameters, of_model = (runs[name][1] for name in TRACKED)
    assert len(of_parameters) == STEPS
    for one, other in zip(of_parameters, of_model, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-15)
        assert (one > 0).any()


@pytest.mark.parametrize("name", TRACKED)
def test_the_json_is_what_1_wrote(runs: dict[str, Any], name: str) -> None:
    output, _, folder = runs[name]
    content = json.loads((folder / "run.json").read_text())
    assert list(content) == [str(step) for step in range(STEPS)]
    metrics = {"epoch_count", "train_loss", "test_loss", "train_accuracy", "learning_rate"}
    for step, values in output.items():
        expected = set(values) | (metrics if step % 4 == 0 else set())
        assert set(content[str(step)]) == expected
    assert content["4"]["epoch_count"] == 4 / 6
    assert math.isnan(content["4"]["test_loss"])
    assert content["0"]["GradNorm"] == output[0]["GradNorm"]
    assert content["0"]["GradHist1d"]["hist"] == output[0]["GradHist1d"]["hist"].tolist()
    edges = content["0"]["GradHist2d"]["edges"]
    assert edges == [values.tolist() for values in output[0]["GradHist2d"]["edges"]]


@pytest.mark.parametrize("name", TRACKED)
def test_the_json_is_read_again(runs: dict[str, Any], name: str) -> None:
    output, _, folder = runs[name]
    run = open_run(folder / "run.json")
    assert run.events().empty
    assert run.parameters == [f"parameter{place}" for place in range(6)]
    for step in output:
        if "GradNorm" in output[step]:
            assert run.series("GradNorm").loc[step].tolist() == output[step]["GradNorm"]
    assert run.series("NormTest").tolist() == [
        values["NormTest"] for values in output.values() if "NormTest" in values
    ]
    assert run.series("train_loss").index.tolist() == [0, 4, 8]


@pytest.mark.parametrize("name", TRACKED)
def test_pictures_and_animation_are_saved(runs: dict[str, Any], name: str) -> None:
    folder = runs[name][2]
    assert sorted(path.name for path in folder.iterdir()) == [
        "cockpit_done.png",
        "run.gif",
        "run.json",
    ]


@pytest.mark.parametrize("label", ["business", "full"])
def test_configurations_give_equal_values(label: str) -> None:
    outputs = []
    for tracked in TRACKED.values():
        torch.manual_seed(0)
        model = extend(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double())
        lossfunc = extend(nn.CrossEntropyLoss())
        opt = torch.optim.Adam(model.parameters())
        cockpit = Cockpit(tracked(model), configuration(label))
        for step in range(3):
            inputs, targets = torch.rand(5, 3).double(), torch.randint(2, (5,))
            opt.zero_grad()
            outputs_of_model = model(inputs)
            loss = lossfunc(outputs_of_model, targets)
            losses = nn.functional.cross_entropy(outputs_of_model, targets, reduction="none")
            with cockpit(step, info={"individual_losses": losses, "loss": loss, "optimizer": opt}):
                loss.backward()
            opt.step()
        outputs.append(cockpit.get_output())
    same(*outputs)
    assert set(outputs[0][0]) == {kind.name for kind in configuration(label)}
