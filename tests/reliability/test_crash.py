"""``kill -9`` at random moments of a training, the number of times that the suite has time for; `soak.py` does 200."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_nothing_that_was_committed_is_lost_when_a_training_is_killed(tmp_path):
    command = [sys.executable, "-m", "reliability.crash", str(tmp_path), "8", "0"]
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tests,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["problems"] == []
    assert outcome["rounds"] == 8
    assert outcome["steps"] > 0
    assert outcome["missing_seconds"] <= 2.0
