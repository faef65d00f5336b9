"""What is wrong with a training: where, since when, why it matters and what to do."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from cockpit.errors import InvalidArgument

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""How bad a finding is, the worst first."""

_CODE = re.compile("[A-Z]{2,8}[0-9]{1,6}")
_NAME = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
_TEXTS = ("title", "why", "action", "source")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is wrong with a training, as data that every page, report and tool can show.

    Args:
        code: Never changes its meaning, such as ``"CP101"``.
        name: The code in words, such as ``"learning-rate-too-high"``.
        severity: ``"error"`` (the training fails or is not what was meant), ``"warning"`` (it is
            worse than it need be) or ``"note"``.
        step: The first step at which it could be known.
        title: What is wrong, in one line.
        why: Why it matters.
        action: What to do.
        source: Where the rule comes from, such as a paper.
        subjects: Names of the layers, parameters or samples concerned, the worst first; empty if it
            is the training as a whole.
        evidence: What it rests on: numbers, words and lists of these, by name. NaN and infinities
            become ``"nan"``, ``"inf"`` and ``"-inf"``, which JSON has no numbers for.
        confidence: How sure it is, from 0 to 1.
        instrument: Name of the instrument whose picture shows it, such as ``"alpha"``.

    Raises:
        InvalidArgument: A value is none of these.
    """

    code: str
    name: str
    severity: Severity
    step: int
    title: str
    why: str
    action: str
    source: str
    subjects: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    confidence: float = 1.0
    instrument: str | None = None

    def __post_init__(self) -> None:
        self._require(
            isinstance(self.code, str) and _CODE.fullmatch(self.code), "code", 'one like "CP101"'
        )
        self._require(
            isinstance(self.name, str) and _NAME.fullmatch(self.name),
            "name",
            "lower-case words joined by hyphens",
        )
        self._require(self.severity in SEVERITIES, "severity", f"one of {', '.join(SEVERITIES)}")
        for text in _TEXTS:
            self._require(isinstance(getattr(self, text), str), text, "a text")
        self._require(len(self.title.splitlines()) == 1, "title", "one line")
        self._require(
            self.instrument is None or isinstance(self.instrument, str),
            "instrument",
            "the name of an instrument, or None",
        )
        self._require(
            isinstance(self.subjects, list | tuple)
            and all(isinstance(subject, str) for subject in self.subjects),
            "subjects",
            "a tuple of names",
        )
        self._require(isinstance(self.evidence, Mapping), "evidence", "a mapping of names")
        # What is equal must stay equal in a file: there is one form of each value.
        own = {
            "step": self._step(),
            "subjects": tuple(self.subjects),
            "evidence": {str(name): self._plain(value) for name, value in self.evidence.items()},
            "confidence": self._confidence(),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)
        try:
            json.dumps(self.record(), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # JSON can spell half of a pair of surrogates
            raise InvalidArgument(
                f"a text of a finding holds what is no character ({error.reason}). Give plain text."
            ) from None

    def record(self) -> dict[str, Any]:
        """Return all of it as strict JSON can hold it, in the order of the arguments."""
        record = {one.name: getattr(self, one.name) for one in fields(self)}
        return record | {"subjects": list(self.subjects), "evidence": dict(self.evidence)}

    @classmethod
    def from_record(cls, record: Any) -> Finding:
        """Return the finding that a `record` stands for; nothing in it is trusted.

        Args:
            record: A record. What this version does not know is left out.

        Raises:
            InvalidArgument: It is none, and why.
        """
        if not isinstance(record, Mapping):
            raise InvalidArgument(
                f"the record of a finding is a {type(record).__name__}. Give the mapping that "
                "Finding.record() returned."
            )
        known = {one.name: record[one.name] for one in fields(cls) if one.name in record}
        try:
            return cls(**known)
        except TypeError as error:  # something required is not there
            raise InvalidArgument(f"the record of a finding is incomplete: {error}") from None

    def __str__(self) -> str:
        where = f" [{', '.join(self.subjects)}]" if self.subjects else ""
        return f"{self.code} {self.name} ({self.severity}, step {self.step}): {self.title}{where}"

    def _require(self, holds: Any, name: str, what: str) -> None:
        if not holds:
            raise InvalidArgument(
                f"the {name} of a finding is {getattr(self, name)!r}. Give {what}."
            )

    def _step(self) -> int:
        try:
            step = operator.index(self.step)
        except TypeError:
            step = None
        # An integer that the run file can hold.
        self._require(step is not None and abs(step) < 2**63, "step", "an integer")
        return int(step)  # type: ignore[arg-type]

    def _confidence(self) -> float:
        number = _builtin(self.confidence)
        self._require(
            isinstance(number, int | float) and 0.0 <= number <= 1.0,
            "confidence",
            "a number from 0 to 1",
        )
        return float(number)

    def _plain(self, value: Any) -> Any:
        value = _builtin(value)
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        self._require(
            value is None or isinstance(value, str | int | float),
            "evidence",
            "numbers, words and lists of these",
        )
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _builtin(value: Any) -> Any:
    """Return numbers and arrays of numpy and torch as those of Python."""
    return value.tolist() if hasattr(value, "tolist") else value
