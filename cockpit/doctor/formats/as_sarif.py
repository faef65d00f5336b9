"""A diagnosis in the Static Analysis Results Interchange Format, version 2.1.0, for code hosts and editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cockpit._version import __version__
from cockpit.doctor.diagnosis import Diagnosis
from cockpit.doctor.formats.words import evidence
from cockpit.findings import Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(diagnosis: Diagnosis, run: str) -> str:
    """Return a diagnosis as SARIF: each finding a result at the run file, what was not checked as notifications."""
    findings = diagnosis.findings
    rules = list({finding.code: _rule(finding) for finding in findings}.values())
    notifications = [
        {
            "level": "error" if one.failed else "note",
            "descriptor": {"id": one.code},
            "message": {"text": f"{one.code} {one.name} was not checked: {one.reason}."},
        }
        for one in diagnosis.unchecked
    ]
    content = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {"name": "torch-cockpit", "version": __version__, "rules": rules}
                },
                "invocations": [
                    {
                        "executionSuccessful": not any(one.failed for one in diagnosis.unchecked),
                        "toolExecutionNotifications": notifications,
                    }
                ],
                "results": [_result(finding, run, rules) for finding in findings],
            }
        ],
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.code,
        "name": "".join(word.capitalize() for word in finding.name.split("-")),
        "shortDescription": {"text": finding.name.replace("-", " ")},
        "fullDescription": {"text": finding.why},
        "help": {"text": f"{finding.action} Source: {finding.source}."},
        "defaultConfiguration": {"level": finding.severity},
    }


def _result(finding: Finding, run: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    ids = [rule["id"] for rule in rules]
    shown = evidence(finding)
    text = f"Since step {finding.step}: {finding.title}.{f' ({shown})' if shown else ''} {finding.action}"
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": Path(run).absolute().as_uri()}}
    }
    if finding.subjects:
        location["logicalLocations"] = [
            {"fullyQualifiedName": name, "kind": "member"} for name in finding.subjects
        ]
    return {
        "ruleId": finding.code,
        "ruleIndex": ids.index(finding.code),
        "level": finding.severity,
        "message": {"text": text},
        "locations": [location],
        "rank": 100 * finding.confidence,
        "properties": {"step": finding.step, "evidence": dict(finding.evidence)},
    }
