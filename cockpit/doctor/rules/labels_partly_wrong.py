"""CP309: a part of the labels is wrong."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import aligned, averages, first, recent, unexplained

WINDOW = 8
"""Tracked batches that are looked at together."""

LEARNED = 0.9
"""Loss over that of a blind guess, below which the model knows something of the classes."""

SPREAD = 0.17
"""Of the samples that the model has wrong, those whose label it ranks in the lower half of the classes. Wrong labels
that are spread over all classes are there half of the time, what a model confuses hardly ever: 2 to 6 %."""

DOUBT = 0.02
"""Share of samples of which the model is surer of another class than of all others together, and ranks the label in the
lower half. With all labels right it is below 0.5 %; with 15 % of them wrong 4 to 5 %."""

ONE, LIKE = 0.1, 0.25
"""Share of samples of one label of which the model is surer of another class than of all others together, and how often
two of these look like the same class. What a model confuses with one class is of two or three others that resemble it,
0.3 to 0.5, and 9 % of all samples at most; labels that are wrong are of all classes."""

FEWEST_CLASSES = 6
"""With fewer, the lower half begins right behind the classes that a sample resembles."""

SHOWN = 20
"""Samples that are named at most."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for samples whose label is the least probable to a model that is right about most."""
    lower, right = run.curve("Targets", "lower_half"), run.curve("Targets", "accuracy")
    doubt, loss, classes = (
        run.curve("Targets", "doubt"),
        unexplained(run),
        run.curve("Targets", "classes"),
    )
    if lower is None or right is None or classes is None or doubt is None or loss is None:
        return NotKnown("no classes were seen that the loss compares with probabilities")
    if classes.values[0] < FEWEST_CLASSES:
        return NotKnown("with fewer than six classes a wrong label looks like a hard sample")
    steps, (low, accuracy, sure, level) = aligned(lower, right, doubt, loss)
    if len(steps) < WINDOW:
        return NotKnown(f"it takes {WINDOW} tracked batches, and there are {len(steps)}")
    # In the middle of the batches: a training that is thrown back now and then is sure of wrong classes, too.
    now, share, wrong = recent(low, WINDOW), recent(sure, WINDOW), 1 - averages(accuracy, WINDOW)
    learned = recent(level, WINDOW) < LEARNED
    place = first(learned & (now > SPREAD * wrong) & (share > DOUBT))
    if place is None:
        return _of_one_label(run)
    evidence = {
        "labels in the lower half of the model's ranking": float(now[place]),
        "of those that it has wrong": float(now[place] / wrong[place]),
        "labels that are wrong, at a guess": float(min(1.0, 2 * now[place])),
    }
    return Sign(int(steps[place]), _samples(run), evidence, 0.8)


def _of_one_label(run: Record) -> Sign | None:
    """Look for one label that samples of all classes bear."""
    share, alike, loss = (
        run.curve("Targets", "suspect"),
        run.curve("Targets", "suspects_alike"),
        unexplained(run),
    )
    if share is None or alike is None or loss is None:
        return None
    steps, (part, same, level) = aligned(share, alike, loss)
    # Pairs, of which there are as many as the square of the share is large.
    usual, pairs = averages(part, WINDOW), averages(part**2, WINDOW)
    apart = averages(part**2 * same, WINDOW) / np.where(pairs > 0, pairs, np.inf)
    apart = np.where(pairs > 0, apart, 1.0)
    place = first((recent(level, WINDOW) < LEARNED) & (usual > ONE) & (apart < LIKE))
    if place is None:
        return None
    evidence = {
        "samples of one label that the model is sure are others": float(usual[place]),
        "share of pairs of these that look like one class": float(apart[place]),
    }
    title = "Many samples of one label seem to be of all other classes"
    return Sign(int(steps[place]), _samples(run, "suspected"), evidence, 0.8, title)


def _samples(run: Record, which: str = "doubtful") -> tuple[str, ...]:
    """Name the samples that the model is surest about, the last ones first."""
    names = []
    for step in run.flagged("Targets", which)[::-1]:
        flags = run.flags("Targets", which, step)
        ids = run.flags("Targets", "sample_ids", step)
        assert flags is not None
        for place in np.flatnonzero(flags):
            own = f"sample {ids[place]}" if ids is not None and len(ids) == len(flags) else None
            names.append(own or f"step {step}, place {place}")
        if len(names) >= SHOWN:
            break
    return tuple(dict.fromkeys(names))[:SHOWN]


RULE = Rule(
    code="CP309",
    name="labels-partly-wrong",
    severity="warning",
    title="Some labels seem to be wrong",
    why="The model has learned the classes, and keeps finding samples whose label is among the least probable of all. "
    "Real confusions are between classes that resemble each other; these are spread over all. They keep the loss "
    "high, and later the model learns them by heart.",
    action="Look at the samples named here. Where they are wrong, correct them or leave them out; where that is too "
    "much work, smooth the labels, and stop early. Hand over info={'sample_ids': ids} to have samples "
    "named by your own numbers.",
    source="Northcutt, Jiang & Chuang (2021), arXiv:1911.00068; Arpit et al. (2017), arXiv:1706.05394",
    needs=("Targets",),
    check=check,
    explains=("underfitting", "batch-too-small", "learning-rate-too-high"),
)
