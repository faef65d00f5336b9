"""The panels of curvature, checked as data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cockpit.instruments import Heat, Line, Panel, Reference, panels
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.run import open_run

NAMES = ("fc1.weight", "fc2.weight")


def shown(path: Path, steps: dict[int, list[Row]]) -> dict[str, Panel]:
    """Write a run, and return its panels by title."""
    writer = RunWriter(
        path / "run.db", parameters=[ParameterInfo(n, (2,), "float32") for n in NAMES]
    )
    for step, rows in steps.items():
        writer.record(step, rows)
    writer.close()
    return {panel.title: panel for panel in panels(open_run(writer.path))}


def lines(panel: Panel) -> dict[str, Line]:
    return {mark.label: mark for mark in panel.marks if isinstance(mark, Line)}


def spectrum(grid: np.ndarray, center: float, width: float = 0.1) -> list[Row]:
    density = np.exp(-0.5 * ((grid - center) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return [
        Row("HessianSpectrum", grid, key="eigenvalues"),
        Row("HessianSpectrum", density, key="density"),
        Row("HessianSpectrum", grid[0], key="smallest"),
        Row("HessianSpectrum", grid[-1], key="largest"),
    ]


def test_the_density_of_eigenvalues_at_the_last_step_and_the_first(tmp_path: Path) -> None:
    grid = np.linspace(-1, 4, 200)
    panel = shown(tmp_path, {0: spectrum(grid, 0), 5: spectrum(grid, 3)})[
        "Eigenvalues of the curvature"
    ]
    first, last = lines(panel)["step 0"], lines(panel)["step 5"]
    assert grid[np.nanargmax(first.y)] == pytest.approx(0, abs=0.02)
    assert grid[np.nanargmax(last.y)] == pytest.approx(3, abs=0.02)
    assert (first.style, last.style) == ("faint", "solid")
    assert np.nanmin(last.y) > 1e-6 * np.nanmax(last.y), "tails of the smearing are no eigenvalues"
    assert [m for m in panel.marks if isinstance(m, Reference)] == [Reference(0.0, axis="x")]
    assert (panel.scale, panel.headline) == ("log", "−1 to 4")


def test_the_density_over_time_keeps_its_mass_on_a_grid_that_changes(tmp_path: Path) -> None:
    steps = {s: spectrum(np.linspace(-1, 4 * s, 300), s) for s in (1, 2, 3)}
    (heat,) = shown(tmp_path, steps)["Eigenvalues over time"].marks
    assert isinstance(heat, Heat)
    assert heat.edges is not None
    assert (heat.edges[0], heat.edges[-1]) == (-1, 12)
    mass = np.nansum(heat.values * np.diff(heat.edges)[:, None], 0)
    np.testing.assert_allclose(mass, 1, rtol=1e-3)
    peaks = heat.edges[np.nanargmax(heat.values, 0)]
    np.testing.assert_allclose(peaks, [1, 2, 3], atol=0.15)


def test_one_step_has_no_history(tmp_path: Path) -> None:
    found = shown(tmp_path, {0: spectrum(np.linspace(-1, 4, 200), 0)})
    assert "Eigenvalues of the curvature" in found
    assert "Eigenvalues over time" not in found


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_spectrum_that_is_not_finite(tmp_path: Path, value: float) -> None:
    rows = [
        Row("HessianSpectrum", np.full(5, value), key="eigenvalues"),
        Row("HessianSpectrum", np.full(5, value), key="density"),
    ]
    found = shown(tmp_path, {0: rows, 1: rows})
    assert "Eigenvalues over time" not in found


def test_kronecker_factors_by_parameter(tmp_path: Path) -> None:
    steps = {
        step: [
            Row("KroneckerSpectrum", value * (step + 1), key=key, parameter=name)
            for key, value in (("largest", 3.0), ("effective_rank", 7.0), ("trace", 9.0))
            for name in NAMES
        ]
        for step in range(3)
    }
    found = shown(tmp_path, steps)
    for title, value in (("Sharpness by parameter", 3.0), ("Effective rank by parameter", 7.0)):
        (heat,) = found[title].marks
        assert isinstance(heat, Heat)
        assert heat.names == NAMES
        np.testing.assert_allclose(heat.values, value * np.array([[1, 2, 3]] * 2))


def test_curvature_along_directions_with_the_bound(tmp_path: Path) -> None:
    steps = {
        step: [
            Row("DirectionalCurvature", 3.0, key="gradient"),
            *([Row("DirectionalCurvature", 1.0, key="update")] if step else []),
            Row("learning_rate", 0.1, source="log"),
        ]
        for step in range(4)
    }
    drawn = lines(shown(tmp_path, steps)["Directional curvature"])
    assert list(drawn) == ["along the gradient", "along the update", "2/η"]
    np.testing.assert_allclose(drawn["2/η"].y, 20)
    np.testing.assert_allclose(drawn["along the update"].x, [1, 2, 3])


def test_sharpness_with_the_bound_of_the_optimizer(tmp_path: Path) -> None:
    rows = [
        Row("PreconditionedSharpness", 30.0, key="sharpness"),
        Row("PreconditionedSharpness", 38.0, key="bound"),
        Row("PreconditionedSharpness", 0.0, key="converged", detail=True),
    ]
    panel = shown(tmp_path, {0: rows, 1: rows})["Preconditioned sharpness"]
    assert list(lines(panel)) == ["sharpness", "stability bound"]
    np.testing.assert_allclose(lines(panel)["stability bound"].y, 38)
    assert panel.marks[-1].label == "not converged"  # type: ignore[union-attr]
    assert panel.headline == "30"


def test_critical_sharpness_with_the_learning_rate_of_its_step(tmp_path: Path) -> None:
    """Which is in the run file without being logged by the user."""
    steps = {
        step: [
            Row("CriticalSharpness", 5.0),
            Row("CriticalSharpness", 2 / rate, key="bound", detail=True),
        ]
        for step, rate in enumerate((0.1, 0.2))
    }
    drawn = lines(shown(tmp_path, steps)["Critical sharpness"])
    np.testing.assert_allclose(drawn["2/η"].y, [20, 10])
