"""What the Cockpit paper found in its experiments is found in small ones on Fashion-MNIST, too.

Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604, figures 1, 3, 4 and 5. The experiments are
those of the examples; docs/paper.md tells of them.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cockpit import open_run

EXAMPLES = Path(__file__).parents[1] / "examples"
FIRST = "0.weight"
"""Of the layer that sees the images, in the networks of the second experiment."""

PAGE = (Path(__file__).parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")


def results_of(name: str, folder: Path, *arguments: str) -> Any:
    """Run an example in this process, and return what it has found."""
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    return example["main"]([*arguments, "--out", str(folder)])


def test_raw_pixels_fill_the_outermost_bins(tmp_path: Path) -> None:
    normalised, raw = results_of("04_input_scale", tmp_path, "--steps", "1")
    assert normalised.outermost == 0
    assert 0.02 < raw.outermost < 0.15  # several per cent
    # The images and the weights are the same, so that nothing else is: as many elements are counted.
    totals = [
        open_run(result.path).arrays("GradHist1d", "hist")["value"].iloc[0].sum()
        for result in (normalised, raw)
    ]
    parameters = sum(p.numel() for p in _small_cnn().parameters())
    assert totals == [128 * parameters] * 2  # each element of each sample's gradient, once


def _small_cnn() -> torch.nn.Module:
    return runpy.run_path(str(EXAMPLES / "04_input_scale.py"))["SmallCNN"]()


def test_sigmoids_keep_the_gradient_from_the_early_layers(tmp_path: Path) -> None:
    relu, sigmoid = results_of("05_vanishing_gradients", tmp_path, "--steps", "1")
    first, second, *_, last = sigmoid.beyond.values()
    assert first == second == 0  # all of their elements lie in a tenth of the range
    assert last > 0.05  # while those of the last layer spread
    assert relu.beyond[FIRST] > 0.05  # with ReLU, those of the first layer do
    assert min(relu.beyond.values()) > 0  # and no layer is without
    # The histogram of all parameters does not show it: where one has elements, the other one has.
    filled = []
    for result in (relu, sigmoid):
        counts = open_run(result.path).arrays("GradHist1d", "hist")["value"].iloc[0]
        filled.append(np.flatnonzero(counts))
    assert filled[0].min() < 20
    assert filled[1].min() < 20


def test_alpha_tells_two_trainings_with_equal_losses_apart(tmp_path: Path) -> None:
    (*_, fast), slow = results_of("03_learning_rate", tmp_path, "--steps", "60", "--lr", "0.6")
    assert slow is not None
    assert slow.loss == pytest.approx(fast.loss, rel=0.03)
    assert slow.lr < fast.lr / 10
    assert slow.median < -0.5
    assert fast.median > 0.05


def test_the_page_says_what_is_found() -> None:
    for command in ("03_learning_rate", "04_input_scale", "05_vanishing_gradients"):
        assert f".venv/bin/python examples/{command}.py" in PAGE
        assert (EXAMPLES / f"{command}.py").exists()
