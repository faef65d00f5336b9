"""A long run at a hundredth of its length: memory stays bounded, and retention keeps the file small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    command = [sys.executable, "-m", "reliability.long_runs", str(folder), "100000", "2000"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize("name", ["everything", "retention"])
def test_memory_is_bounded(found, name):
    one = found[name]
    assert one["numbers"] == 100_000
    assert one["writer_mib_at_last"] - one["writer_mib_at_first"] < 20
    assert one["reader_peak_mib"] < 40
    assert one["newest"] is not None


def test_retention_thins_histograms_and_nothing_else(found):
    everything, thinned = found["everything"], found["retention"]
    assert set(everything["arrays"].values()) == {400}
    assert all(50 < count < 250 for count in thinned["arrays"].values())
    assert thinned["numbers"] == everything["numbers"]
    assert thinned["file_mib"] < everything["file_mib"]
