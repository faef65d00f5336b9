"""The line on each quantity: what a value is said to mean. More of them are in `test_cli`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_cli import EDGES, HIST, READ, per_parameter, write

from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.quantities import Alpha, GradHist1d
from cockpit.run import Run, open_run
from cockpit.schedules import at, budget, linear, logarithmic
from cockpit.summary import READERS, ordered, readings, schedule_text, settings_texts


def each(**values: float) -> list[dict[str, float]]:
    """Return 30 equal steps."""
    return [values] * 30


def by_key(key: str, weight: float, bias: float) -> dict[str, float]:
    return {f"{key}/fc.weight": weight, f"{key}/fc.bias": bias}


def joint(counts: np.ndarray, nonfinite: int = 0) -> list[dict[str, object]]:
    edges = {"edges/0": EDGES, "edges/1": EDGES}
    return [{"hist": counts, **edges, "nonfinite": nonfinite}]


def outliers(*scores: float) -> list[dict[str, object]]:
    indices = np.arange(len(scores)) + 7
    return [{"indices": indices, "norms": np.array(scores), "scores": np.array(scores)}] * 12


STATS = by_key("norm", 3, 4) | by_key("std", 1, 1) | by_key("min", -2, -2)
FINE = {"dormant/a": 0.0, "dormant/b": 0.02, "zeros/a": 0.5, "saturated/b": 0.1}

MORE = [
    ("CABS", [80.0] * 9, "if it is far above the one in use"),
    ("EarlyStopping", [-2.0] * 9, "makes progress"),
    ("EarlyStopping", [0.4] * 9, "stopping is an option"),
    ("EarlyStopping", [np.nan], "not defined: batches of one sample"),
    ("MeanGSNR", np.linspace(1, 0.1, 30), "falling, as is usual; it was 1 at step 0"),
    ("MeanGSNR", np.linspace(1, 2, 30), "not falling; it was 1 at step 0"),
    ("MeanGSNR", [0.3], "signal to noise"),
    ("GradientNoiseScale", each(noise_scale=-1, trace=8, squared_norm=2), "wastes steps"),
    ("GradientNoiseScale", each(noise_scale=-1, trace=8, squared_norm=-2), "not known"),
    ("GradientAlignment", each(mean_cosine=0.1, negative_share=0.2), "20 % of the pairs"),
    ("GradientAlignment", each(mean_cosine=-0.01, negative_share=0.8), "against each other"),
    ("GradientAlignment", [{"mean_cosine": np.nan, "negative_share": np.nan}], "not defined"),
    ("PerSampleOutliers", outliers(2.0, 1.0), "largest score of a batch, as usual"),
    ("PerSampleOutliers", outliers(3.2, 1.0), "largest score of a batch, as usual"),
    ("PerSampleOutliers", outliers(9.0, 4.0, 1.0), "samples 7, 8"),
    ("PerSampleOutliers", outliers(np.inf, 4.0), "largest score of a batch"),
    ("GradHist2d", joint(np.diag([0, 5, 9, 5, 0])), "few, as usual"),
    ("GradHist2d", joint(np.ones((5, 5))), "many: adapt the range"),
    ("GradHist2d", joint(np.diag(HIST), 3), "3 pairs are not finite"),
    ("UpdateRatio", per_parameter([1e-3] * 9, [2e-3] * 9), "rule of thumb"),
    ("UpdateRatio", per_parameter([1e-3] * 9, [0.5] * 9), "thrown about, at more than 0.01: fc.bias"),
    ("UpdateRatio", per_parameter([1e-6] * 9, [1e-3] * 9), "hardly learning, at less than 0.0001: fc.weight"),
    ("UpdateRatio", per_parameter([np.nan], [np.inf]), "not defined"),
    ("LostUpdates", per_parameter([0.0], [0.001]), "rounding takes little"),
    ("LostUpdates", per_parameter([0.0], [0.0]), "rounding takes nothing"),
    ("LostUpdates", per_parameter([0.4], [0.0]), "updates of fc.weight"),
    ("LostUpdates", per_parameter([np.nan], [np.nan]), "the gradient is zero"),
    ("AdamStaleness", per_parameter([1.0], [1.1]), "up to date"),
    ("AdamStaleness", per_parameter([1.0], [2.5]), "try a smaller β₂: fc.bias"),
    ("AdamStaleness", per_parameter([np.inf], [np.inf]), "not finite"),
    ("ParameterStats", [STATS | by_key("max", 2, 2)], "it was 5 at step 0"),
    ("ParameterStats", [STATS | by_key("max", 99, 2)], "beyond 50 standard deviations: fc.weight"),
    ("ParameterStats", [STATS | by_key("max", 2, 2) | {"norm/fc.bias": np.nan}], "not finite: fc.bias"),
    ("HessMaxEV", [12.0], "plain SGD is stable below 2/η"),
    ("HessMaxEV", [-0.5], "no direction curves upwards"),
    ("HessMaxEV", [np.nan], "diverged"),
    ("HessTrace", per_parameter([3.0], [1.0]), "the largest part, 3, is that of fc.weight"),
    ("HessTrace", per_parameter([np.nan], [np.nan]), "diverged"),
    ("TICDiag", [3.0], "gap between training and test loss"),
    ("TICDiag", np.linspace(1, 9, 40), "a sign of overfitting"),
    ("TICTrace", [3.0] * 40, "not growing"),
    ("HessianSpectrum", [{"smallest": 0.0, "largest": 3.0}], "no direction curves downwards"),
    ("HessianSpectrum", [{"smallest": -0.3, "largest": 3.0}], "the negative ones reach 10 % of the largest"),
    ("HessianSpectrum", [{"smallest": -4.0, "largest": 3.0}], "far from a minimum"),
    ("HessianSpectrum", [{"smallest": np.nan, "largest": np.nan}], "diverged"),
    ("KroneckerSpectrum", [by_key("largest", 2, 9)] * 3, "the largest eigenvalue, that of fc.bias"),
    ("KroneckerSpectrum", [by_key("largest", np.nan, np.nan)], "diverged"),
    ("DirectionalCurvature", [{"gradient": 4.0}], "along the gradient"),
    ("DirectionalCurvature", [{"gradient": 4.0, "update": 0.1}] * 3, "0.100 along the update, which avoids"),
    ("DirectionalCurvature", [{"gradient": np.nan}], "no gradient at all"),
    ("PreconditionedSharpness", [{"sharpness": 4.0, "bound": 20.0}], "20 % of the optimizer's bound, 20: stable"),
    ("PreconditionedSharpness", [{"sharpness": 19.0, "bound": 20.0}], "at the edge of stability"),
    ("PreconditionedSharpness", [{"sharpness": 50.0, "bound": 20.0}], "the loss is about to grow"),
    ("PreconditionedSharpness", [{"sharpness": np.nan, "bound": 20.0}], "diverged"),
    ("ActivationStats", [FINE], "few"),
    ("ActivationStats", [FINE | {"dormant/b": 0.0}], "no unit of any module is dormant"),
    ("ActivationStats", [FINE | {"dormant/b": 0.24}], "of the units of b are dormant"),
    ("ActivationStats", [FINE | {"dormant/a": 0.5}], "capacity is lost in a"),
    ("ActivationStats", [FINE | {"zeros/a": 0.99}], "hardly anything but zeros in a"),
    ("ActivationStats", [FINE | {"saturated/b": 0.95}], "hardly anything but saturated values in b"),
    ("ActivationStats", [{"dormant/a": np.nan}], "diverged"),
    ("AttentionStats", [{"largest_logit/attn": 4.0}], "moderate"),
    ("AttentionStats", [{"largest_logit/attn": 80.0}], "entropy may collapse: attn"),
    ("AttentionStats", [{"largest_logit/attn": np.inf}], "diverged"),
    ("NonFinite", [{"modules": 0, "gradients": 0}] * 3, "all outputs and gradients are finite"),
    ("NonFinite", [{"modules": 0, "gradients": 0}, {"modules": 0, "gradients": 2}], "first at 1: gradients only"),
]  # fmt: skip


@pytest.mark.parametrize(("quantity", "values", "meaning"), MORE)
def test_what_a_value_means(quantity: str, values: object, meaning: str, tmp_path: Path) -> None:
    (reading,) = readings(open_run(write(tmp_path / "run.db", (quantity, values))))
    assert reading.quantity == quantity
    assert meaning in reading.meaning
    assert reading.value


@pytest.mark.parametrize(
    ("suggested", "words"),
    [
        (1.16, "far below the 64 in use, smaller batches would do"),
        (20.0, "size: below the 64 in use"),
        (70.0, "about the 64 in use"),
        (300.0, "size: above the 64 in use, use larger batches"),
        (6400.0, "far above the 64 in use, use larger batches or a smaller rate"),
    ],
)
def test_the_suggested_batch_size_is_compared_with_the_one_in_use(
    suggested: float, words: str, tmp_path: Path
) -> None:
    columns = ("batch_size", [32.0, 64.0]), ("CABS", [suggested] * 9)
    reading, _ = readings(open_run(write(tmp_path / "run.db", *columns)))
    assert words in reading.meaning


def test_the_lines_are_in_the_order_of_the_pictures() -> None:
    stored = [
        "learning_rate",
        "Mine",
        "HessMaxEV",
        "NormTest-2",
        "Distance",
        "NormTest",
        "Alpha",
        "Loss",
    ]
    assert ordered(stored) == [
        "Loss",
        "Alpha",
        "Distance",
        "NormTest-2",
        "NormTest",
        "HessMaxEV",
        "learning_rate",
        "Mine",
    ]


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (linear(1), "every step"),
        (linear(3), "every 3 steps"),
        (linear(3, 7), "every 3 steps from 7 on"),
        (at([5, 0, 40]), "at 0, 5, 40"),
        (at([]), "never"),
        (budget(0.05), "within 5 % of the training time"),
        (logarithmic(0, 2.5, steps=9), "9 steps from 10^0 to 10^2.5, and step 0"),
        (linear(3) | at([0, 1]) & linear(2), "every 3 steps or at 0, 1 and every 2 steps"),
    ],
)
def test_schedules_are_words(schedule: object, words: str) -> None:
    assert schedule_text(repr(schedule)) == words


def test_a_schedule_of_somebody_else_stays_as_it_is() -> None:
    assert schedule_text("<function mine at 0x7f>") == "<function mine at 0x7f>"


def test_settings_are_readable() -> None:
    settings = {
        "quantities": {
            "Alpha": repr(Alpha(linear(1))),
            "GradHist1d": repr(GradHist1d(linear(3), bins=20)),
            "Mine": "Mine()",
        },
        "memory_budget": 64 * 2**20,
        "reduction": None,
        "gaps": [],
        "optimizers": [{"lr": 0.1, "nesterov": False}],
    }
    assert settings_texts(settings) == {
        "quantities.Alpha": "every step",
        "quantities.GradHist1d": "every 3 steps; bins=20, range=(-2.0, 2.0), adapt=None, samples=65536",
        "quantities.Mine": "Mine()",
        "memory_budget": "64 MiB",
        "optimizers.0.lr": "0.1",
        "optimizers.0.nesterov": "False",
    }


def test_critical_sharpness_is_compared_with_the_learning_rate(tmp_path: Path) -> None:
    rows = [
        Row("CriticalSharpness", 18.0),
        Row("CriticalSharpness", 20.0, key="bound", detail=True),
    ]
    (reading,) = readings(recorded(tmp_path, ["fc.weight"], rows))
    assert reading.meaning == "90 % of 2/η, 20: stable"


def test_facts_for_the_doctor_are_not_read_as_values(tmp_path: Path) -> None:
    (reading,) = readings(recorded(tmp_path, ["fc.weight"], [Row("Wiring", 1.0, key="loss/mean")]))
    assert (reading.value, reading.meaning) == ("", "facts for the doctor: cockpit doctor RUN")


def test_every_reader_is_tested() -> None:
    accuracies_and_losses = {n for n in READERS if n.endswith(("_accuracy", "_loss"))}
    tested = {quantity for quantity, _, _ in (*READ, *MORE)} | {"CriticalSharpness", "Wiring"}
    assert set(READERS) - accuracies_and_losses <= tested


@pytest.mark.parametrize(("rate", "side"), [(0.1, "below"), (0.3, "above")])
def test_sharpness_is_compared_with_the_learning_rate(
    rate: float, side: str, tmp_path: Path
) -> None:
    columns = ("HessMaxEV", [12.0] * 3), ("learning_rate", [rate] * 3)
    reading, _ = readings(open_run(write(tmp_path / "run.db", *columns)))
    assert f"it is {side}" in reading.meaning


def test_one_parameter_may_limit_the_learning_rate(tmp_path: Path) -> None:
    names = [f"fc{i}.weight" for i in range(5)]
    rows = [
        Row("HessTrace", 1e5 if i == 3 else 1.0, parameter=name) for i, name in enumerate(names)
    ]
    (reading,) = readings(recorded(tmp_path, names, rows))
    assert reading.meaning.endswith("is that of fc3.weight: it limits the learning rate")


def test_the_first_module_that_is_not_finite_is_named(tmp_path: Path) -> None:
    rows = [Row("NonFinite", 2, key="modules"), Row("NonFinite", 0, key="gradients")]
    for place, (module, count) in enumerate((("a", 0), ("b", 3), ("c", 9))):
        rows.append(Row("NonFinite", count, key="values", parameter=module, detail=True))
        rows.append(Row("NonFinite", place, key="order", parameter=module, detail=True))
    (reading,) = readings(recorded(tmp_path, ["fc.weight"], rows))
    assert (reading.value, reading.meaning) == (
        "1 step",
        "with NaN or infinities, first at 0: the output of b",
    )


def recorded(folder: Path, names: list[str], rows: list[Row]) -> Run:
    parameters = [ParameterInfo(name, (2,), "float32") for name in names]
    writer = RunWriter(folder / "run.db", parameters=parameters)
    writer.record(0, rows)
    writer.close()
    return open_run(writer.path)
