"""How the cost of economy grows with the size of the batch, the network and its inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases import ECONOMY
from benchmarks.costs import PLAIN, peak_of, prepared
from benchmarks.measuring import interleaved
from benchmarks.networks import (
    BATCH_SIZE,
    Problem,
    Training,
    deep,
    dense,
    gpt2,
    mlp,
    three_c_three_d,
)
from benchmarks.tables import Aim, Section, Table
from cockpit import configuration
from cockpit.profiling.figures import Figure, ratios
from cockpit.transforms import Need

FITTED = 3
"""Number of the largest sizes to which exponents are fitted: there, the fixed part of a step no longer
counts, which lets the plain step grow slowly at first."""
OBSERVED = 3
"""Steps in which the needs are looked at one by one, at most."""
TOLERANCE = 0.1
"""Differences of exponents up to this are not told from noise."""
SHARE = 0.05
"""Needs that take less of the plain step than this are passed over: what grows from nothing."""


@dataclass(frozen=True)
class Curve:
    """What grows.

    Args:
        title: What the table is called.
        size: Name of what grows.
        sizes: Its values.
        make: Makes the network and a batch for a value.
        repeats: How often each step is timed.
        by_parameters: Whether exponents are those of the number of parameters, instead of the value.
        reasons: Why a need, or ``"time"`` or ``"memory"`` of the whole set, grows faster than the plain
            step, by its name.
    """

    title: str
    size: str
    sizes: tuple[int, ...]
    make: Callable[[int], Problem]
    repeats: int = 5
    by_parameters: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """What one size takes.

    Args:
        size: The value of what grows.
        parameters: Number of parameters.
        seconds: Of the plain and the tracked step.
        ratio: Of the two, repeat by repeat.
        peaks: Bytes of all tensors at the worst moment of the two.
        needs: Seconds of meeting each need in the tracked step.
    """

    size: int
    parameters: int
    seconds: dict[str, Figure]
    ratio: Figure
    peaks: dict[str, int]
    needs: dict[str, float]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the e of the power law s^e that is closest to the values, on logarithmic scales."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measured(curves: Sequence[Curve], quick: bool, tick: Callable[[], None]) -> Section:
    """Measure curves, and return what is shown of them."""
    tables, aims, data = [], [], {}
    for curve in curves:
        sizes = curve.sizes[:2] if quick else curve.sizes
        points = [point(curve, size, 1 if quick else curve.repeats, tick) for size in sizes]
        faster = growing_faster(curve, points)
        without_reason = [name for name in faster if reason_of(curve, name) is None]
        tables.append(table(curve, points, faster))
        aims.append(
            Aim(f"{curve.title}: what grows faster without a reason", len(without_reason), 0)
        )
        data[curve.title] = {
            "points": [asdict(each) for each in points],
            "exponents": exponents(curve, points),
            "faster": faster,
        }
    return Section(tables, aims, data)


def point(curve: Curve, size: int, repeats: int, tick: Callable[[], None]) -> Point:
    """Measure one size."""
    sets = {PLAIN: None, ECONOMY: configuration(ECONOMY)}
    trainings, staying = prepared(
        {
            name: partial(Training, lambda _: curve.make(size), quantities)
            for name, quantities in sets.items()
        }
    )
    times = interleaved(trainings, repeats, warmup=1, tick=tick)
    peaks = {name: peak_of(each, staying[name]) for name, each in trainings.items()}
    needs = needs_of(trainings[ECONOMY], min(repeats, OBSERVED))
    for training in trainings.values():
        training.close()
    tick()
    return Point(
        size,
        sum(p.numel() for p in trainings[PLAIN].model.parameters()),
        {name: Figure.of(of_step) for name, of_step in times.items()},
        ratios(times[ECONOMY], times[PLAIN]),
        peaks,
        needs,
    )


def needs_of(training: Training, count: int) -> dict[str, float]:
    """Return the seconds that meeting each need takes in a step, over all parameters: the median of some steps."""
    steps: list[dict[str, float]] = []

    def observe(need: Need, parameter: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = function()
        name = type(need).__name__
        steps[-1][name] = steps[-1].get(name, 0.0) + time.perf_counter() - start
        return value

    assert training.watch is not None
    engine = training.watch._engine
    engine.observer = observe
    for _ in range(count):
        steps.append({})
        training()
    engine.observer = None
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


def exponents(curve: Curve, points: Sequence[Point]) -> dict[str, float]:
    """Return how fast time and memory of both steps, and each need, grow at the largest sizes."""
    points = points[-FITTED:]
    sizes = [each.parameters if curve.by_parameters else each.size for each in points]
    found = {}
    for name in (PLAIN, ECONOMY):
        found[f"{name} time"] = exponent(sizes, [p.seconds[name].median for p in points])
        found[f"{name} memory"] = exponent(sizes, [p.peaks[name] for p in points])
    for need in points[0].needs:
        found[need] = exponent(sizes, [p.needs[need] for p in points])
    return found


def growing_faster(curve: Curve, points: Sequence[Point]) -> dict[str, float]:
    """Return the exponents of what grows faster than the plain step, and does not vanish beside it."""
    of = exponents(curve, points)
    found = {
        what: of[f"{ECONOMY} {what}"]
        for what in ("time", "memory")
        if of[f"{ECONOMY} {what}"] > of[f"{PLAIN} {what}"] + TOLERANCE
    }
    largest = points[-1]
    for need, seconds in largest.needs.items():
        counts = seconds > SHARE * largest.seconds[PLAIN].median
        if counts and of[need] > of[f"{PLAIN} time"] + TOLERANCE:
            found[need] = of[need]
    return found


def reason_of(curve: Curve, name: str) -> str | None:
    """Return why something grows faster than the plain step, as far as that is known."""
    return curve.reasons.get(name, REASONS.get(name))


def table(curve: Curve, points: Sequence[Point], faster: Mapping[str, float]) -> Table:
    """Return the table of a curve: a row for each size, and one of exponents."""
    rows = [
        (
            f"{each.size:,}",
            f"{each.parameters / 1e6:.2f}",
            *(f"{1e3 * each.seconds[name].median:.1f}" for name in (PLAIN, ECONOMY)),
            f"{each.ratio.median:.2f}",
            f"{each.ratio.low:.2f}-{each.ratio.high:.2f}",
            *(f"{each.peaks[name] / 2**20:.1f}" for name in (PLAIN, ECONOMY)),
            f"{each.peaks[ECONOMY] / each.peaks[PLAIN]:.2f}",
        )
        for each in points
    ]
    of = exponents(curve, points)
    cells = ["exponent*", ""]
    for what, blank in (("time", [""]), ("memory", [])):
        plain, economy = of[f"{PLAIN} {what}"], of[f"{ECONOMY} {what}"]
        cells += [f"{plain:.2f}", f"{economy:.2f}", f"{economy / plain:.2f}", *blank]
    rows.append(tuple(cells))
    head = (
        curve.size,
        "parameters [M]",
        "plain [ms]",
        "economy [ms]",
        "x plain",
        "quartiles",
        "plain [MiB]",
        "economy [MiB]",
        "x plain ",
    )
    optional = ("quartiles", "economy [MiB]", "plain [MiB]", "parameters [M]")
    return Table(curve.title, head, rows, (), notes(curve, points, faster), optional)


def notes(curve: Curve, points: Sequence[Point], faster: Mapping[str, float]) -> list[str]:
    """Return a sentence for all that grows faster than the plain step."""
    fitted = f"* of the {len(points[-FITTED:])} largest sizes"
    fitted += ", by the number of parameters." if curve.by_parameters else "."
    if not faster:
        return [f"{fitted} Nothing of economy grows faster than the plain step."]
    of, plain = exponents(curve, points), points[-1].seconds[PLAIN].median
    sentences = [fitted]
    for name, found in faster.items():
        beside = of[f"{PLAIN} memory" if name == "memory" else f"{PLAIN} time"]
        of_plain = "that of the plain step" if name in ("time", "memory") else "the plain step"
        share = points[-1].needs.get(name)
        takes = f", at last {share / plain:.0%} of it" if share else ""
        reason = reason_of(curve, name) or "NOT EXPLAINED"
        sentences.append(
            f"{name} grows faster than {of_plain} ({found:.2f} against {beside:.2f}){takes}: {reason}."
        )
    return sentences


ELEMENTS = (
    "it reads every element of the parameters once, from main memory as soon as they outgrow the "
    "processor's cache"
)
COPIES = (
    "economy keeps the parameters of the start and those before the update, and in the plain step the "
    "outputs of the layers, which grow less, count for more"
)
PAIRS = (
    "it is made of the products of all pairs of samples as long as these are fewer than the elements of the "
    "layer's weight, and grows like g and the products with it from there on"
)
PRODUCTS = (
    "it is a product of every weight with the inputs of its layer, as the forward pass is, and of the plain step "
    "the parts that grow less count for more: activations, norms, the softmax over the vocabulary"
)
REASONS = {
    **dict.fromkeys(("DistanceFromStart", "GradientNorms", "UpdateNorms"), ELEMENTS),
    "memory": COPIES,
}
"""Why needs grow faster than the plain step, whatever grows."""

CURVES = (
    Curve(
        "Batch size, MLP 784-1000-500-100-10",
        "samples",
        (32, 64, 128, 256, 512, 1024),
        mlp,
        15,
        reasons={"DotMean": PAIRS},
    ),
    Curve("Batch size, 3c3d", "samples", (32, 64, 128, 256, 512, 1024), three_c_three_d, 3),
    Curve(
        f"Width: 784-w-w-w-10, batch {BATCH_SIZE}",
        "width",
        (256, 512, 1024, 2048, 4096),
        lambda width: dense(BATCH_SIZE, (784, width, width, width, 10)),
    ),
    Curve(
        f"Depth: layers of width 512, batch {BATCH_SIZE}",
        "layers",
        (4, 8, 16, 32, 64),
        lambda depth: deep(BATCH_SIZE, depth, 512),
    ),
    Curve(
        "Context: GPT-2 with 4 layers of width 128, batch 4",
        "characters",
        (64, 128, 256, 512, 1024),
        lambda context: gpt2(4, context=context),
        3,
    ),
    Curve(
        "Parameters: GPT-2 with 12 layers and its vocabulary of 50,257, context 64, batch 4",
        "width",
        (192, 384, 768),
        lambda width: gpt2(4, layers=12, heads=12, width=width, context=64, vocabulary=50_257),
        1,
        by_parameters=True,
        reasons=dict.fromkeys(("DotUpdate", "DotPreviousUpdate", "DotMean"), PRODUCTS),
    ),
)
