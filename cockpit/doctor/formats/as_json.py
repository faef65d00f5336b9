"""A diagnosis for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from cockpit.doctor.diagnosis import Diagnosis


def as_json(diagnosis: Diagnosis, run: str) -> str:
    """Return a diagnosis as strict JSON: ``run``, ``findings``, ``consequences``, ``unchecked``, ``checked``."""
    content = {
        "run": run,
        "findings": [finding.record() for finding in diagnosis.findings],
        "consequences": [
            {"cause": one.cause, "finding": one.finding.record()} for one in diagnosis.consequences
        ],
        "unchecked": [asdict(one) for one in diagnosis.unchecked],
        "checked": diagnosis.checked,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
