"""The doctor: what is wrong with a training, where, since when, and what to do.

::

    watch = Cockpit(model, configuration("health"), optimizer=opt, doctor=True, on_finding="warn")

or, of a run that is there, ``cockpit doctor runs/first.db`` and ``diagnose("runs/first.db")``.
"""

from cockpit.doctor.diagnosis import Consequence, Diagnosis, Unchecked, diagnose
from cockpit.doctor.live import AttendedWriter, Doctor, TrainingStopped, read_reactions, read_rules
from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules import RULES

__all__ = [
    "RULES",
    "AttendedWriter",
    "Consequence",
    "Curve",
    "Diagnosis",
    "Doctor",
    "NotKnown",
    "Record",
    "Rule",
    "Sign",
    "TrainingStopped",
    "Unchecked",
    "diagnose",
    "read_reactions",
    "read_rules",
]
