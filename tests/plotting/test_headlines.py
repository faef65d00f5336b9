"""A picture and the summary say the same of what a quantity is now."""

from __future__ import annotations

import numpy as np
import pytest

from cockpit.instruments import panel_of
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import Run, open_run
from cockpit.summary.lines import reading_of

NAMES = ("fc.weight", "fc.bias")
STEPS = 300

SINGLE = ("Alpha", "CABS", "EarlyStopping", "HessMaxEV", "Loss", "MeanGSNR", "NormTest", "TICDiag")
BY_PARAMETER = ("Distance", "GradNorm", "HessTrace", "LostUpdates")
KEYED = {
    "CriticalSharpness": ("", "bound"),
    "DirectionalCurvature": ("gradient", "update"),
    "GradientAlignment": ("mean_cosine", "negative_share"),
    "GradientNoiseScale": ("noise_scale", "trace", "squared_norm"),
    "HessianSpectrum": ("smallest", "largest"),
    "PreconditionedSharpness": ("sharpness", "bound"),
}

PICTURES = {
    "alpha": "Alpha",
    "attention-logits": "AttentionStats",
    "cabs": "CABS",
    "critical-sharpness": "CriticalSharpness",
    "directional-curvature": "DirectionalCurvature",
    "distance": "Distance",
    "early-stopping": "EarlyStopping",
    "grad-norm": "GradNorm",
    "grad-tests": "NormTest",
    "grad-tests-bands": "NormTest",
    "gradient-alignment": "GradientAlignment",
    "gradient-noise-scale": "GradientNoiseScale",
    "hess-max-ev": "HessMaxEV",
    "hess-trace": "HessTrace",
    "hessian-spectrum": "HessianSpectrum",
    "loss": "Loss",
    "lost-updates": "LostUpdates",
    "mean-gsnr": "MeanGSNR",
    "preconditioned-sharpness": "PreconditionedSharpness",
    "step-time": "Time",
    "tic": "TICDiag",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of noisy values, which the last one tells little of."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("run") / "run.db"
    writer = RunWriter(path, parameters=[ParameterInfo(n, (2,), "float32") for n in NAMES])
    for step in range(STEPS):
        rows = [Row(name, rng.random()) for name in SINGLE]
        rows += [Row(q, rng.random(), parameter=name) for q in BY_PARAMETER for name in NAMES]
        rows += [Row(q, rng.random(), key) for q, keys in KEYED.items() for key in keys]
        rows += [Row("AttentionStats", rng.random(), "largest_logit", m) for m in ("a", "b")]
        rows += [Row("Time", step + rng.random())]
        grid = np.linspace(-1, 1, 9)
        rows += [
            Row("HessianSpectrum", v, k) for k, v in (("eigenvalues", grid), ("density", 2 + grid))
        ]
        writer.record(step, rows)
    writer.close()
    return open_run(path)


@pytest.mark.parametrize("name", PICTURES)
def test_the_headline_is_what_the_summary_says(run: Run, name: str) -> None:
    headline = panel_of(run, name).headline
    assert headline
    assert headline == reading_of(run, PICTURES[name]).value
