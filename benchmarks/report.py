"""All results of a run of the benchmarks: what is printed at the end, and what is written."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.machine import described
from benchmarks.tables import Aim, Section


@dataclass
class Report:
    """Collects sections.

    Args:
        machine: On what was measured.
        quick: Whether it is a first look only.
        allowed: How many minutes the whole may take.
        minutes: How long it took, in the end.
    """

    machine: dict[str, object]
    quick: bool
    allowed: float
    minutes: float = 0.0
    sections: dict[str, Section] = field(default_factory=dict)

    @property
    def preface(self) -> str:
        """How the figures are to be read."""
        preface = (
            "SGD with momentum; every step is tracked unless it is said otherwise. Steps are timed in "
            "turn, A B C A B C; figures are medians, with quartiles, of the repeats, and ratios are "
            "taken repeat by repeat."
        )
        return f"{preface} A quick look, with small batches." if self.quick else preface

    @property
    def aims(self) -> list[Aim]:
        """What should be reached."""
        of_sections = [aim for section in self.sections.values() for aim in section.aims]
        return [*of_sections, Aim("minutes", self.minutes, self.allowed)]

    @property
    def missed(self) -> list[Aim]:
        """What is not."""
        return [aim for aim in self.aims if not aim.met]

    def closing(self) -> list[str]:
        """Return what is said at the end."""
        lines = [f"{len(self.missed)} of {len(self.aims)} aims are missed."]
        lines += [f"- {aim}" for aim in self.missed]
        return [*lines, f"It took {self.minutes:.1f} minutes."]

    def write(self, stem: Path) -> list[Path]:
        """Write it as JSON and as Markdown, and return where."""
        stem.parent.mkdir(exist_ok=True)
        paths = [stem.with_suffix(".json"), stem.with_suffix(".md")]
        for path, text in zip(paths, (self.json(), self.markdown()), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths

    def json(self) -> str:
        """Return it for programs."""
        record = {
            "machine": self.machine,
            "quick": self.quick,
            "minutes": self.minutes,
            "sections": {name: section.data for name, section in self.sections.items()},
            "aims": [asdict(aim) | {"met": aim.met} for aim in self.aims],
        }
        return json.dumps(record, indent=1, allow_nan=False) + "\n"

    def markdown(self) -> str:
        """Return it for people."""
        parts = ["# What tracking costs\n", f"{self.preface}\n", f"{described(self.machine)}.\n"]
        for section in self.sections.values():
            parts += [table.markdown() for table in section.tables]
            if section.text:
                parts.append(f"```text\n{section.text.strip()}\n```\n")
        aims = [f"- {aim}" for aim in self.aims]
        parts += ["## Aims\n", "\n".join([*aims, f"\nIt took {self.minutes:.1f} minutes."]) + "\n"]
        return "\n".join(parts)
