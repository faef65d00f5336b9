"""CP111: a training that has come to rest far from its task."""

from __future__ import annotations

import math

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import at, averages, first, recent, relative_loss, unexplained

WINDOW = 8
"""Tracked batches, as many of which are compared with as many before."""

HIGH = 0.5
"""Loss over that of the best blind guess: more than half of what there is to know is not known."""

FLAT = 0.03
"""Share of the loss that it still loses from one window to the next."""

GAP = 0.9
"""Training loss over validation loss, above which it is not memory that is short of new samples."""

SEEN = 100
"""Steps without which no training has come to rest."""


NARROW, OTHERS, NOT_LEARNED = 2, 8, 0.2
"""Units of a layer that has to carry all that is known of the inputs, how many times as many inputs it has at least,
and the loss over that of a blind guess which it leaves."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for a layer that is too narrow, and for losses that have come to rest."""
    narrow = _through_few(run)
    return narrow if narrow is not None else _at_rest(run)


def _through_few(run: Record) -> Sign | None:
    """Look for a layer of so few units that hardly anything comes through."""
    loss = relative_loss(run)
    shapes = [(one.name, one.shape) for one in run.parameters if len(one.shape) > 1]
    level = recent(loss.values, WINDOW)
    place = first((level > NOT_LEARNED) & (loss.steps >= SEEN))
    if place is None:
        return None
    for number, (name, own) in enumerate(shapes, 1):
        units, inputs = own[0], math.prod(own[1:])
        wider = any(shape[0] > units for _, shape in shapes[number:])
        if units <= NARROW and inputs >= OTHERS * units and wider:
            evidence = {"units": units, "loss over that of a blind guess": float(level[place])}
            title = f"All that the model knows of its inputs goes through {units} unit{'s' * (units > 1)}"
            return Sign(
                int(loss.steps[place]), (name.removesuffix(".weight"),), evidence, 0.6, title
            )
    return None


def _at_rest(run: Record) -> Sign | NotKnown | None:
    """Look for losses on training and validation data that are both high and flat."""
    loss, valid = unexplained(run), run.curve("valid_loss")
    raw = run.curve("Targets", "loss")
    if loss is None or raw is None:
        return NotKnown("the loss of a blind guess is not known; track configuration('health')")
    if valid is None or len(valid.steps) < 3:
        return NotKnown(
            "it takes three validation losses: watch.log(step, valid_loss=...) at some steps"
        )
    if len(loss.steps) < 2 * WINDOW:
        return NotKnown(f"it takes {2 * WINDOW} tracked batches, and there are {len(loss.steps)}")
    level, middle = averages(loss.values, WINDOW), recent(loss.values, WINDOW)
    train = averages(raw.values, WINDOW)
    for place in range(2 * WINDOW - 1, len(loss.steps)):
        step = loss.steps[place : place + 1]
        flat = min(level[place], middle[place]) > (1 - FLAT) * level[place - WINDOW]
        known = valid.steps <= step[0]
        if not flat or level[place] < HIGH or known.sum() < 3 or step[0] - loss.steps[0] < SEEN:
            continue
        now = float(valid.values[known][-1])
        training = float(at(Curve(raw.steps, train), step)[0])
        falls = now < (1 - FLAT) * float(valid.values[known][-3])
        if training > GAP * now and not falls:
            evidence = {
                "loss over that of a blind guess": float(level[place]),
                "the same some batches before": float(level[place - WINDOW]),
                "validation loss": now,
            }
            return Sign(int(step[0]), (), evidence, 0.5)
    return None


RULE = Rule(
    code="CP111",
    name="underfitting",
    severity="note",
    title="The model underfits: training and validation loss have come to rest, and both are high",
    why="It does no better on the samples that it is trained on: what limits it is the model, its training, or what "
    "the data tell at all, which nobody knows from a run.",
    action="Try a larger model, less weight decay, dropout or augmentation, and another learning rate. Try "
    "to learn twenty samples by heart: a model that can do so is not too small.",
    source='Goodfellow, Bengio & Courville (2016), "Deep Learning", section 5.2; Karpathy (2019), "A Recipe for '
    'Training Neural Networks"',
    needs=("Targets",),
    check=check,
    least=2 * WINDOW,
    instrument="loss",
)
