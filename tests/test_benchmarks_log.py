import json
from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from benchmarks import log
from cockpit.log import Row


@pytest.fixture(scope="module")
def figures():
    patch = pytest.MonkeyPatch()
    patch.setattr(log, "QUICK_SCALARS", 1000)
    patch.setattr(log, "QUICK_HISTOGRAMS", 40)
    yield {figure.what: figure for figure in log.measure(quick=True)}
    patch.undo()


def test_all_figures_are_measured(figures):
    assert [(figure.unit, figure.limit) for figure in figures.values()] == [
        *(("µs a row", 20), ("bytes a row", 12), ("s", 0.2), ("s", 0.5)),
        *(("µs a row", 20), ("x Parquet", 1.2)) * 2,
    ]
    assert all(figure.value > 0 for figure in figures.values())
    json.dumps([asdict(figure) for figure in figures.values()], allow_nan=False)


def test_the_histograms_are_those_of_all_parameters_and_the_edges(figures):
    # 5 steps of 9 histograms and one or two edges
    assert any(what.startswith("50 histograms and edges of GradHist1d: file") for what in figures)
    assert any(what.startswith("55 histograms and edges of GradHist2d: file") for what in figures)


def test_arrays_come_out_as_they_were_recorded(tmp_path):
    rows = [[Row("q", np.arange(3) + step, "hist", "p", True)] for step in range(4)]
    log.write(
        tmp_path / "a.db", [[*step, Row("other", np.zeros(2)), Row("q", 1.0)] for step in rows]
    )
    found = log.arrays(tmp_path / "a.db", "q")
    assert [[row.value.tolist() for row in step] for step in found] == [
        [[0, 1, 2]],
        [[1, 2, 3]],
        [[2, 3, 4]],
        [[3, 4, 5]],
    ]
    assert (found[0][0].key, found[0][0].parameter, found[0][0].detail) == ("hist", "p", True)


def test_parquet_holds_every_count_and_edge():
    generator = np.random.default_rng(0)
    noise = [[Row("q", generator.integers(2**62, size=100), "hist")] for _ in range(50)]
    assert log.parquet(noise) > 50 * 100 * 7  # cannot be compressed
    with_edges = [[*step, Row("q", generator.normal(size=101), "edges")] for step in noise]
    assert log.parquet(with_edges) > 50 * 201 * 7
