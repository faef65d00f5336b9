"""Individual gradients of k samples drawn from N, against formulas on gradients by brute force, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backpack import extend
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from training import MODELS, Truth, individual_gradients, train

from cockpit import Cockpit, CockpitWarning
from cockpit.engine.needs import DotUpdate
from cockpit.errors import CockpitError, InvalidArgument, InvalidType
from cockpit.gradients import Batch, Draw
from cockpit.quantities import (
    CABS,
    Alpha,
    EarlyStopping,
    GradHist1d,
    GradHist2d,
    GradientAlignment,
    GradientNoiseScale,
    GradNorm,
    HessTrace,
    InnerTest,
    MeanGSNR,
    NormTest,
    OrthoTest,
    PerSampleOutliers,
    Quantity,
    TICDiag,
    TICTrace,
)
from cockpit.quantities.bin_adaptation import GradAbsMax
from cockpit.transforms import (
    DotMean,
    Gram,
    Histogram1d,
    Mean,
    MinMax,
    Need,
    SquareNormOfMean,
    SquareNorms,
    SumOfSquares,
    Transform,
)

N, K, STEPS = 7, 4, 3


@dataclass(frozen=True)
class Indices(Quantity):
    """Which samples were drawn."""

    norms: Need = field(default_factory=SquareNorms)

    def compute(self, step: Any) -> Tensor:
        return torch.arange(step.batch_size) if step.draw is None else step.draw.index


@dataclass(frozen=True)
class Kept(Quantity):
    """Keeps the value of a need, by step."""

    need: Need = field(default_factory=SumOfSquares)
    seen: dict[int, Any] = field(default_factory=dict, compare=False)

    def needs(self) -> tuple[Need, ...]:
        return (self.need,)

    def compute(self, step: Any) -> int:
        self.seen[step.global_step] = step[self.need]
        return 0


@dataclass
class Drawn:
    """One step by brute force, and which samples were drawn."""

    s: Truth
    index: Tensor

    @property
    def few(self) -> Tensor:
        """The gradients of the samples drawn, [k, D]."""
        return self.s.G[self.index]

    @property
    def deviations(self) -> Tensor:
        """(g_i − g)² of these, with the gradient of all samples, [k, D]."""
        return (self.few - self.s.g) ** 2

    @property
    def square(self) -> Tensor:
        return self.s.g @ self.s.g

    @property
    def along(self) -> Tensor:
        return self.few @ self.s.g


def root(deviations: Tensor, n: int, scale: Tensor) -> Tensor:
    return (deviations.mean() / ((n - 1) * scale)).sqrt()


def noise_scale(x: Drawn) -> dict[str, Tensor]:
    trace = x.deviations.sum(1).mean() * x.s.n / (x.s.n - 1)
    signal = x.square - trace / x.s.n
    share = trace / (x.s.n * x.square)
    return {
        "noise_scale": trace / signal,
        "trace": trace,
        "squared_norm": signal,
        "noise_share": share,
    }


def alignment(x: Drawn) -> dict[str, Tensor]:
    unit = x.few / x.few.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)]
    return {"mean_cosine": cosines.mean(), "negative_share": (cosines < 0).float().mean()}


def outliers(x: Drawn) -> dict[str, Any]:
    norms = x.few.norm(dim=1).numpy()
    deviation = norms - np.median(norms)
    scores = deviation / (1.4826 * np.median(abs(deviation)))
    largest = np.argsort(-scores)[:2]
    return {"indices": x.index[largest], "norms": norms[largest], "scores": scores[largest]}


ESTIMATES: dict[Quantity, Any] = {
    NormTest(): lambda x: root(x.deviations.sum(1), x.s.n, x.square),
    InnerTest(): lambda x: root((x.along - x.square) ** 2, x.s.n, x.square**2),
    OrthoTest(): lambda x: root((x.few**2).sum(1) - x.along**2 / x.square, x.s.n, x.square),
    CABS(): lambda x: x.s.lr * x.deviations.sum(1).mean() / x.s.losses.mean(),
    EarlyStopping(): lambda x: (
        1 - x.s.n * (x.s.g**2 / (x.deviations.mean(0) * x.s.n / (x.s.n - 1) + 1e-5)).mean()
    ),
    MeanGSNR(): lambda x: (x.s.g**2 / (x.deviations.mean(0) + 1e-5)).mean(),
    GradientNoiseScale(): noise_scale,
    GradientAlignment(): alignment,
    PerSampleOutliers(k=2): outliers,
}
"""What each quantity is of the samples drawn, with the gradient of all."""


def alpha(start: Drawn, end: Drawn) -> float:
    """Weighted least squares: losses and mean slopes of all samples, the slopes' variance of those drawn."""
    d = start.s.d
    tau = float(d.norm())
    rows = np.array([[1, 0, 0], [1, tau, tau**2], [0, 1, 0], [0, 1, 2 * tau]])
    points = start, end
    observed = [*(x.s.losses.mean() for x in points), *(x.s.g @ d / tau for x in points)]
    spread = [*(x.s.losses.var() for x in points), *((x.few @ d / tau).var() for x in points)]
    weight = 1 / np.sqrt(np.array(spread))
    _, w1, w2 = np.linalg.lstsq(rows * weight[:, None], np.array(observed) * weight, rcond=None)[0]
    return -1.0 if w2 <= 0 else 2 * tau / (-w1 / w2) - 1


def close(actual: Any, expected: Any, rtol: float = 1e-9) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(actual[key], value, rtol=rtol)
    else:
        np.testing.assert_allclose(actual, expected, rtol=rtol)


# -- with as many samples as there are ------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("subsample", [N, N + 5])
def test_nothing_changes_where_the_batch_is_no_larger(kind: str, subsample: int) -> None:
    several = [*ESTIMATES, Alpha(), TICDiag(), TICTrace(), Indices(), GradHist2d(), GradNorm()]
    several += [GradHist1d(adapt=GradAbsMax()), GradHist1d(samples=50)]
    settings: dict[str, Any] = {"steps": STEPS, "batch_size": N}
    _, expected, without = train(kind, several, **settings)
    _, actual, watch = train(kind, several, subsample=subsample, **settings)
    assert repr(actual) == repr(expected)
    for frame in ("scalars", "arrays"):
        one, other = (getattr(w.run(), frame)() for w in (watch, without))
        assert one.to_dict("list").__repr__() == other.to_dict("list").__repr__()
    assert not watch.run().events()["subject"].eq("individual gradients").any()


# -- against the formulas -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_every_estimate(kind: str, reduction: str) -> None:
    tracked = [*ESTIMATES, Alpha(), Indices()]
    truths, output, _ = train(
        kind, tracked, subsample=K, steps=STEPS, batch_size=N, reduction=reduction
    )
    steps = [Drawn(s, torch.as_tensor(output[t]["Indices"])) for t, s in enumerate(truths)]
    assert len({tuple(x.index.tolist()) for x in steps}) > 1
    for t, x in enumerate(steps):
        assert len(x.index) == K
        for quantity, formula in ESTIMATES.items():
            close(output[t][quantity.name], formula(x))
        if t + 1 < STEPS:
            close(output[t]["Alpha"], alpha(x, steps[t + 1]), rtol=1e-6)
    for values in output.values():
        close(values["NormTest"], np.hypot(values["InnerTest"], values["OrthoTest"]))


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_kept_of_each_parameter(kind: str) -> None:
    needs = SumOfSquares(), Mean(), SquareNormOfMean(), SquareNorms(), DotMean(), Gram(), MinMax()
    kept = {need: Kept(need=need) for need in needs}
    several = [*kept.values(), Indices()]
    truths, output, _ = train(kind, several, subsample=K, steps=2, batch_size=N)
    for t, s in enumerate(truths):
        index = torch.as_tensor(output[t]["Indices"])
        for name, everything in s.gradients.items():
            few, g = everything[index].flatten(1), everything.mean(0).flatten()
            expected = {
                SumOfSquares(): N * (g**2 + ((few - g) ** 2).mean(0)),
                Mean(): g,
                SquareNormOfMean(): g @ g,
                SquareNorms(): (few**2).sum(1),
                DotMean(): few @ g,
                Gram(): few @ few.T,
                MinMax(): torch.stack([few.min(), few.max()]),
            }
            for need, value in expected.items():
                actual = kept[need].seen[t][name].reshape(value.shape)
                np.testing.assert_allclose(actual, value, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("kind", MODELS)
def test_curvature_and_criteria_made_of_it(kind: str) -> None:
    """The curvature is that of all samples, the second moment of the gradients an estimate."""
    several = [TICTrace(), HessTrace(), Indices()]
    settings: dict[str, Any] = {"steps": 2, "batch_size": N}
    truths, output, _ = train(kind, several, subsample=K, **settings)
    _, whole, _ = train(kind, several, **settings)
    for t, s in enumerate(truths):
        x = Drawn(s, torch.as_tensor(output[t]["Indices"]))
        ratio = (x.square + x.deviations.sum(1).mean()) / (s.G**2).sum(1).mean()
        close(output[t]["TICTrace"], whole[t]["TICTrace"] * float(ratio))
        assert output[t]["HessTrace"] == whole[t]["HessTrace"]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("count", "tolerance"), [(3, 0), (4, 1)])
def test_histograms(kind: str, count: int, tolerance: int) -> None:
    """Exact multiples of the counts, or the nearest where 6 samples are no multiple of those drawn."""
    edges, edges_of_theta = np.linspace(-1, 1, 40), np.linspace(-2, 2, 50)
    tracked = [
        GradHist1d(bins=39, range=(-1.0, 1.0), samples=None),
        GradHist2d(bins=(39, 49), samples=None),
        Indices(),
    ]
    truths, output, _ = train(kind, tracked, steps=2, batch_size=6, subsample=count)
    for t, s in enumerate(truths):
        few = s.G[output[t]["Indices"]].clip(-1, 1)
        theta = torch.cat([s.before[p].flatten() for p in s.names]).clip(-2, 2)
        values = np.histogram(few, edges)[0]
        pairs = np.histogram2d(few.flatten(), theta.repeat(count), [edges, edges_of_theta])[0]
        for name, counts in (("GradHist1d", values), ("GradHist2d", pairs)):
            hist = output[t][name]["hist"]
            assert hist.sum() == s.G.numel()
            assert abs(hist - counts * 6 / count).max() <= tolerance * len(s.names)


@pytest.mark.parametrize("kind", MODELS)
def test_values_drawn_from_the_samples_drawn_stand_for_all(kind: str) -> None:
    kept = Kept(need=Histogram1d(bins=5, samples=200))
    truths, _, _ = train(kind, [kept], steps=2, batch_size=N, subsample=K)
    for t, s in enumerate(truths):
        for name, histogram in kept.seen[t].items():
            assert histogram.counts.sum() == s.gradients[name].numel()
        drawn = sum(h.drawn for h in kept.seen[t].values())
        assert drawn <= (s.G.numel() if kind == "transformer" else 250)


# -- without bias ---------------------------------------------------------------------------------


def ways_to_draw(size: int, count: int) -> list[int]:
    """Return seeds with which each of the subsets is drawn once."""
    seeds: dict[tuple[int, ...], int] = {}
    for seed in range(500):
        seeds.setdefault(tuple(Draw.of(Batch(size, seed=seed), count).index.tolist()), seed)
    assert seeds.keys() == set(combinations(range(size), count))
    return list(seeds.values())


@pytest.mark.parametrize("kind", MODELS)
def test_estimates_have_no_bias(kind: str) -> None:
    """The mean over all 10 ways to draw 3 of 5 samples is the value of the whole batch."""
    squares, slopes = Kept(need=SumOfSquares()), Kept(need=DotUpdate())
    several = (
        NormTest(),
        InnerTest(),
        OrthoTest(),
        CABS(),
        GradientNoiseScale(),
        GradientAlignment(),
    )

    def values(**settings: Any) -> dict[str, Any]:
        tracked = [*several, squares, slopes]
        output = train(kind, tracked, steps=1, batch_size=5, **settings)[1][0]
        found = {name: output[name] ** 2 for name in ("NormTest", "InnerTest", "OrthoTest")}
        noise, cosine = output["GradientNoiseScale"], output["GradientAlignment"]["mean_cosine"]
        found |= {"CABS": output["CABS"], "cosine": cosine}
        found |= {name: noise[name] for name in ("trace", "squared_norm")}
        found |= {f"squares of {name}": value for name, value in squares.seen[0].items()}
        along = slopes.seen[0].total()
        return found | {"slope": along.mean(), "variance of the slope": along.var()}

    whole = values()
    drawn = [values(subsample=3, seed_of_samples=seed) for seed in ways_to_draw(5, 3)]
    assert len(drawn) == 10
    for name, value in whole.items():
        mean = np.mean([np.asarray(one[name]) for one in drawn], axis=0)
        scale = np.abs(np.asarray(value)).max()
        np.testing.assert_allclose(mean, value, rtol=1e-12, atol=1e-12 * scale)
    for one in drawn:
        close(one["slope"], whole["slope"])  # exact, whatever is drawn
    assert np.std([one["NormTest"] for one in drawn]) > 0


def test_draws_are_even_and_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    draws = [Draw.of(Batch(10, seed=seed), 4).index for seed in range(2000)]
    assert torch.equal(torch.get_rng_state(), before)
    share = torch.bincount(torch.cat(draws), minlength=10) / len(draws)
    assert (share - 0.4).abs().max() < 0.05  # 4.5 standard deviations
    assert all(torch.equal(d.sort().values.unique(), d) for d in draws)
    assert torch.equal(draws[3], Draw.of(Batch(10, seed=3), 4).index)


# -- where the gradient of all samples comes from -------------------------------------------------


def tracked_norms(
    prepare: Any = lambda model: None, penalty: float = 0.0, after: int = 0
) -> tuple[list[float], list[Drawn]]:
    """Return NormTest at three steps without updates, and what these were by brute force."""
    torch.manual_seed(0)
    model = MODELS["mlp"]()[0].double()
    x, y = torch.randn(N, 6).double(), torch.randint(3, (N,))
    gradients = individual_gradients(model, x, y)
    truth = Truth(list(gradients), gradients, torch.zeros(N), torch.zeros(()), {}, {})
    watch = Cockpit(model, [NormTest(), Indices()], subsample=K)
    for step in range(3):
        if step == after:
            prepare(model)
        losses = cross_entropy(model(x), y, reduction="none")
        loss = losses.mean() + penalty * sum(p.square().sum() for p in model.parameters())
        with watch(step, loss=loss, individual_losses=losses):
            (8 * loss).backward()  # accumulates: nothing is set to zero in between
    output = watch.get_output()
    watch.close()
    drawn = [Drawn(truth, torch.as_tensor(output[t]["Indices"])) for t in output]
    return [output[t]["NormTest"] for t in output], drawn


def test_gradients_that_accumulate_and_a_factor_on_the_loss() -> None:
    for value, x in zip(*tracked_norms(), strict=True):
        close(value, ESTIMATES[NormTest()](x))


def test_hooks_that_change_the_gradient_do_not_reach_it() -> None:
    def prepare(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.register_hook(lambda grad: 3 * grad)

    with pytest.warns(CockpitWarning, match="do not add up"):
        values, drawn = tracked_norms(prepare)
    later, drawn_later = tracked_norms(prepare, after=1)
    values, drawn = values + later, drawn + drawn_later
    for value, x in zip(values, drawn, strict=True):
        close(value, ESTIMATES[NormTest()](x))


def test_a_penalty_in_the_loss_is_no_part_of_it() -> None:
    with pytest.warns(CockpitWarning, match="do not add up"):
        values, drawn = tracked_norms(penalty=0.1)
    for value, x in zip(values, drawn, strict=True):
        close(value, ESTIMATES[NormTest()](x))


def test_several_losses_in_several_passes() -> None:
    torch.manual_seed(0)
    model = MODELS["mlp"]()[0].double()
    x, y = torch.randn(N, 6).double(), torch.randint(3, (N,))
    gradients = individual_gradients(model, x, y)
    truth = Truth(list(gradients), gradients, torch.zeros(N), torch.zeros(()), {}, {})
    watch = Cockpit(model, [NormTest(), Indices()], subsample=K)
    for step in range(3):
        losses = cross_entropy(model(x), y, reduction="none")
        parts = 0.25 * losses, 0.75 * losses
        loss = tuple(part.mean() for part in parts)
        with watch(step, loss=loss, individual_losses=parts):
            loss[0].backward(retain_graph=True)
            loss[1].backward()
    output = watch.get_output()
    watch.close()
    for values in output.values():
        close(
            values["NormTest"],
            ESTIMATES[NormTest()](Drawn(truth, torch.as_tensor(values["Indices"]))),
        )


# -- every kind of layer --------------------------------------------------------------------------


class Table(nn.Module):
    """Uses a parameter outside of layers, one layer twice, and frames that are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 3, 4))
        self.head = nn.Parameter(torch.randn(4, 2))
        self.twice = nn.Linear(4, 4)
        self.conv = nn.Conv1d(1, 2, 2)

    def forward(self, x: Tensor) -> Tensor:  # [N, 3, 4]
        x = self.twice(torch.tanh(self.twice(x + self.places)))
        frames = self.conv(x.reshape(-1, 1, 4))  # [3 N, 2, 3]
        return x @ self.head + frames.reshape(len(x), 3, 6).sum(2, keepdim=True)


LAYERS: dict[str, tuple[Any, Any]] = {
    "convolution with many positions": (
        lambda: nn.Conv2d(2, 3, 3),
        lambda: torch.randn(N, 2, 18, 18),
    ),
    "groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), lambda: torch.randn(N, 4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2), lambda: torch.randn(N, 2, 5)),
    "embedding": (lambda: nn.Embedding(9, 3), lambda: torch.randint(9, (N, 4))),
    "bag": (lambda: nn.EmbeddingBag(9, 3, mode="sum"), lambda: torch.randint(9, (N, 4))),
    "batch norm": (lambda: nn.BatchNorm1d(4), lambda: torch.randn(N, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), lambda: torch.randn(N, 3, 4)),
    "recurrent": (lambda: Recurrent(), lambda: torch.randn(N, 3, 4)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 9, dropout=0.0, batch_first=True),
        lambda: torch.randn(N, 3, 8),
    ),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        lambda: torch.randn(N, 4),
    ),
    "uses outside of layers": (Table, lambda: torch.randn(N, 3, 4)),
    "tokens": (lambda: nn.Linear(4, 3), lambda: torch.randn(N, 5, 4)),
    "generic": (lambda: Generic(), lambda: torch.randn(N, 4)),
}


class Recurrent(nn.Module):
    """The outputs of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Generic(nn.Module):
    """A module of no known kind."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.scale.exp())


@pytest.mark.parametrize("memory_budget", [1, 2**26])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name: str, memory_budget: int) -> None:
    torch.manual_seed(0)
    model, x = LAYERS[name][0]().double(), LAYERS[name][1]()
    x = x.double() if x.is_floating_point() else x
    few, everything = Kept(need=Everything()), Kept(need=Everything())
    settings: dict[str, Any] = {"memory_budget": memory_budget, "batch_dim": 0}
    watches = [
        Cockpit(model, [few, Indices()], subsample=K, **settings),
        Cockpit(model, [everything], **settings),
    ]
    for step in range(2):
        for watch in watches:
            losses = torch.sin(2 * model(x)).flatten(1).sum(1)
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
    output = watches[0].get_output()
    for watch in watches:
        watch.close()
    for step in range(2):
        index = output[step]["Indices"]
        assert len(everything.seen[step]) == len([*model.parameters()])
        for parameter, (dense, *_) in everything.seen[step].items():
            chosen, mean = dense[index], dense.mean(0)
            expected = (
                chosen,
                (chosen.flatten(1) ** 2).sum(1),
                N * (mean**2 + ((chosen - mean) ** 2).mean(0)),
                chosen.flatten(1) @ chosen.flatten(1).T,
                chosen.flatten(1) @ mean.flatten(),
                mean,
                torch.stack([chosen.min(), chosen.max()]),
                chosen.abs().max(),
                chosen.flatten(1) @ torch.ones_like(mean).flatten(),
            )
            for actual, value in zip(few.seen[step][parameter], expected, strict=True):
                np.testing.assert_allclose(actual, value, rtol=1e-9, atol=1e-13)


@dataclass(frozen=True)
class Everything(Transform):
    """All reductions of a handle."""

    def __call__(self, gradients: Any) -> tuple[Tensor, ...]:
        values = (
            gradients.square_norms(),
            gradients.sum_of_squares(),
            gradients.gram(),
            gradients.dot_mean(),
            gradients.mean(),
            gradients.min_max(),
            gradients.abs_max(),
            gradients.dot(torch.ones(gradients.shape, dtype=torch.float64)),
        )
        return gradients.dense().clone(), *(value.clone() for value in values)


# -- in the loop ----------------------------------------------------------------------------------


def test_training_stays_as_it_is() -> None:
    one, other = (
        train("cnn", [NormTest(), Alpha()], steps=3, batch_size=N, **s)[0]
        for s in ({}, {"subsample": K})
    )
    for name, value in one[-1].after.items():
        assert torch.equal(value, other[-1].after[name])


def test_the_run_file_says_how_many_of_how_many() -> None:
    _, _, watch = train(
        "mlp", [PerSampleOutliers(k=2), GradientAlignment()], batch_size=N, subsample=K
    )
    run = watch.run()
    assert run.settings["subsample"] == K
    events = run.events()
    (message,) = events[events["subject"] == "individual gradients"]["message"]
    assert message.startswith("those of 4 of 7 samples, drawn without replacement at every step")
    for quantity in ("PerSampleOutliers", "GradientAlignment"):
        assert (run.series(quantity, "samples") == K).all()


def test_draws_are_reproducible() -> None:
    first, second, third = (
        train("mlp", [Indices(), NormTest()], batch_size=N, subsample=K, seed_of_samples=s)[1]
        for s in (5, 5, 6)
    )
    assert repr(first) == repr(second) != repr(third)


@pytest.mark.parametrize("wrong", [1, 0, -3])
def test_too_few_samples_are_refused(wrong: int) -> None:
    with pytest.raises(InvalidArgument, match=f"subsample must be at least 2, .* got {wrong}"):
        Cockpit(nn.Linear(2, 2), subsample=wrong)


@pytest.mark.parametrize("wrong", [0.5, "all"])
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidType, match="subsample must be a whole number"):
        Cockpit(nn.Linear(2, 2), subsample=wrong)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.cockpit.ranks_of", lambda model: object())
    with pytest.raises(CockpitError, match="not from one that is spread over several"):
        Cockpit(nn.Linear(2, 2), subsample=2)


# -- micro-batches --------------------------------------------------------------------------------


def accumulated(
    sizes: list[int], kind: str = "mlp", weights: tuple[float, ...] = (), **settings: Any
) -> tuple[list[Drawn], dict[int, dict[str, Any]]]:
    """Track two steps without updates whose batch comes in parts, and return them beside the truth."""
    torch.manual_seed(0)
    model, inputs = MODELS[kind]()
    model.double()
    x, y = inputs(sum(sizes)), torch.randint(3, (sum(sizes),))
    parts = torch.tensor(weights or sizes, dtype=torch.float64)
    of_parts = parts / parts.sum() * sum(sizes) / torch.tensor(sizes)
    of_samples = of_parts.repeat_interleave(torch.tensor(sizes))
    gradients = {
        name: (value.movedim(0, -1) * of_samples).movedim(-1, 0)
        for name, value in individual_gradients(model, x, y).items()
    }
    losses = cross_entropy(model(x), y, reduction="none").detach() * of_samples
    truth = Truth(list(gradients), gradients, losses, losses.mean(), {}, {}, lr=0.1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [*ESTIMATES, Indices()], optimizer=opt, **settings)
    for step in range(2):
        for number, (xs, ys) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
            of_part = cross_entropy(model(xs), ys, reduction="none")
            loss, part = of_part.mean(), (number, len(sizes))
            with watch(step, loss=loss, individual_losses=of_part, micro_batch=part):
                (loss * parts[number]).backward()
    output = watch.get_output()
    watch.close()
    index = (torch.as_tensor(of_step.get("Indices", [])) for of_step in output.values())
    return [Drawn(truth, of_step) for of_step in index], output


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("weights", [(), (1.0, 2.0, 5.0)])
def test_equal_micro_batches(kind: str, weights: tuple[float, ...]) -> None:
    drawn, output = accumulated([4, 4, 4], kind, weights, subsample=7)
    for step, x in enumerate(drawn):
        assert (x.index // 4).tolist() == [0, 0, 1, 1, 2, 2]  # 7 // 3 of each
        for quantity, formula in ESTIMATES.items():
            close(output[step][quantity.name], formula(x))


def test_micro_batches_that_are_small_enough_are_used_as_a_whole() -> None:
    _, expected = accumulated([3, 2])
    _, actual = accumulated([3, 2], subsample=6)
    assert repr(actual) == repr(expected)


def test_unequal_micro_batches_are_not_checked() -> None:
    told = r"unequal shares of the micro-batches \(2 of 5, 2 of 3\).*give micro-batches of one size"
    with pytest.warns(CockpitWarning, match=told):
        _, output = accumulated([5, 3], subsample=4)
    assert not any("NormTest" in values for values in output.values())


# -- without the model ----------------------------------------------------------------------------


def test_parameters_of_an_extended_model() -> None:
    """BackPACK's hooks deliver each parameter's gradients when the pass is over."""
    torch.manual_seed(0)
    model = extend(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))).double()
    x, y = torch.randn(N, 4).double().requires_grad_(), torch.randint(3, (N,))
    gradients = individual_gradients(model, x, y)
    truth = Truth(list(gradients), gradients, torch.zeros(N), torch.zeros(()), {}, {})
    watch = Cockpit(model.named_parameters(), [NormTest(), Indices()], subsample=K)
    for step in range(2):
        losses = cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
    output = watch.get_output()
    watch.close()
    for values in output.values():
        x_ = Drawn(truth, torch.as_tensor(values["Indices"]))
        close(values["NormTest"], ESTIMATES[NormTest()](x_))


def test_a_resumed_run_draws_the_same_samples(tmp_path: Path) -> None:
    def run(log: Path, stop: int | None) -> dict[int, dict[str, Any]]:
        torch.manual_seed(0)
        model = MODELS["mlp"]()[0].double()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def attached(resume: bool) -> Cockpit:
            several = [Alpha(), NormTest(), Indices()]
            return Cockpit(model, several, optimizer=opt, subsample=K, log=log, resume=resume)

        watch = attached(False)
        for step in range(4):
            if step == stop:
                state = watch.state_dict()
                watch.close()
                watch = attached(True)
                watch.load_state_dict(state)
            x = torch.randn(N, 6, generator=torch.Generator().manual_seed(step)).double()
            opt.zero_grad()
            losses = model(x).square().sum(1)
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            opt.step()
        output = watch.get_output()
        watch.close()
        return output

    assert repr(run(tmp_path / "a.db", 2)) == repr(run(tmp_path / "b.db", None))
