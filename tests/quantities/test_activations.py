"""What is seen in the forward pass: when, of which modules, and what the quantities make of it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cockpit import Cockpit, CockpitError, CockpitWarning, schedules
from cockpit.engine import InForward, Step
from cockpit.quantities import (
    ActivationStats,
    AttentionStats,
    NonFinite,
    NormTest,
    ParameterStats,
    Quantity,
)
from cockpit.quantities import attention_stats as attention_file


@dataclass(frozen=True)
class Sums(InForward):
    """Sum of every module's output; keeps the names that it was shown, in `shown`."""

    shown: list[str] = field(default_factory=list, compare=False)

    def see(self, name: str, call: Any, output: Any) -> Tensor | None:
        self.shown.append(name)
        return output.sum() if isinstance(output, Tensor) else None


@dataclass(frozen=True)
class Seen(Quantity):
    sums: Sums = field(default_factory=Sums)

    def needs(self) -> tuple[Any, ...]:
        return (self.sums,)

    def compute(self, step: Step) -> Any:
        return step[self.sums]


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def track(
    watch: Cockpit, model: Callable[[Tensor], Tensor], step: int, x: Tensor | None = None
) -> Tensor:
    x = torch.randn(5, 3) if x is None else x
    loss = model(x).square().sum(1).mean()
    with watch(step, loss=loss):
        loss.backward()
    return x


def parts(watch: Cockpit, step: int) -> dict[str, float]:
    frame = watch.run().scalars()
    frame = frame[frame["step"] == step]
    return dict(zip(frame["part"], frame["value"], strict=True))


# -- when something is seen -----------------------------------------------------------------------


def test_outputs_are_seen_before_they_are_overwritten() -> None:
    model = small()
    watch = Cockpit(model, [Seen()])
    x = track(watch, model, 0)
    hidden = model[0](x)
    assert parts(watch, 0) == {
        "0": pytest.approx(hidden.sum().item(), abs=1e-5),
        "1": pytest.approx(hidden.relu().sum().item(), abs=1e-5),
        "2": pytest.approx(model(x).sum().item(), abs=1e-5),
        "Sequential": pytest.approx(model(x).sum().item(), abs=1e-5),  # the model itself
    }


def test_only_the_passes_of_due_steps_are_looked_at() -> None:
    model, seen = small(), Seen(schedules.linear(3))
    watch = Cockpit(model, [seen])
    looked = []
    for step in range(7):
        seen.sums.shown.clear()
        track(watch, model, step)
        looked.append(list(seen.sums.shown))
    assert looked == [["0", "1", "2", "Sequential"] if step % 3 == 0 else [] for step in range(7)]
    assert set(watch.get_output()) == {0, 3, 6}


def test_the_first_step_may_have_any_number() -> None:
    model = small()
    watch = Cockpit(model, [Seen(schedules.at([1000]))])
    track(watch, model, 1000)
    assert set(watch.get_output()) == {1000}


def test_a_step_that_was_not_expected_says_so() -> None:
    model = small()
    watch = Cockpit(model, [Seen(schedules.linear(3))])
    track(watch, model, 0)
    with pytest.warns(CockpitWarning, match=r"step 1 was expected to be next.*count the steps one"):
        track(watch, model, 3)
    assert set(watch.get_output()) == {0}


def test_steps_that_are_left_out_do_not_matter_if_every_one_is_due() -> None:
    model = small()
    watch = Cockpit(model, [Seen()])
    for step in (0, 10, 20):
        track(watch, model, step)
    assert set(watch.get_output()) == {0, 10, 20}


def test_evaluation_is_not_looked_at_and_the_last_pass_counts() -> None:
    model = small()
    watch = Cockpit(model, [Seen()])
    model(torch.randn(5, 3))
    x = torch.randn(5, 3)
    loss = model(x).square().sum(1).mean()
    with torch.no_grad():
        model(torch.randn(5, 3))
    with watch(0, loss=loss):
        loss.backward()
        model(torch.randn(5, 3))
    with torch.no_grad():
        assert parts(watch, 0)["2"] == pytest.approx(model(x).sum().item(), abs=1e-5)


def test_every_call_has_a_name() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = nn.Linear(3, 3), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.layer(self.act(self.layer(x))))

    model, seen = Twice(), Seen()
    watch = Cockpit(model, [seen])
    for step in range(2):
        seen.sums.shown.clear()
        track(watch, model, step)
        assert seen.sums.shown == ["layer", "act", "layer#2", "act#2", "Twice"]


def test_modules_that_are_called_without_the_model() -> None:
    model = small()
    watch = Cockpit(model, [Seen()])
    for step in range(2):
        track(watch, lambda x: model[2](model[1](model[0](x))), step)
        assert list(parts(watch, step)) == ["0", "1", "2"]


def test_recomputed_and_replayed_calls_are_not_counted() -> None:
    class Scale(nn.Module):
        """Has no rule of its own, so that its forward is run again for individual gradients."""

        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.body = Scale(), small()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.body, self.scale(x), use_reentrant=False)

    model, seen = Checkpointed(), Seen(schedules.linear(2))
    watch = Cockpit(model, [seen, NormTest()])
    for step in range(4):
        track(watch, model, step)
    names = ["scale", "body.0", "body.1", "body.2", "body", "Checkpointed"]
    assert seen.sums.shown == names * 2
    assert list(parts(watch, 2)) == [*names, ""]  # and NormTest


def test_no_output_is_kept() -> None:
    model = small()
    watch = Cockpit(model, [ActivationStats(), NonFinite()])
    outputs = []
    model[1].register_forward_hook(lambda m, a, output: outputs.append(weakref.ref(output)))
    y = model(torch.randn(5, 3))
    del y
    assert outputs[0]() is None
    watch.close()


def test_several_cockpits() -> None:
    first, second = small(), small()
    watches = [Cockpit(m, [ActivationStats()]) for m in (first, second, first)]
    x = torch.randn(5, 3)
    loss = (first(x) + second(x)).square().sum(1).mean()
    with watches[0](0, loss=loss), watches[1](0, loss=loss), watches[2](0, loss=loss):
        loss.backward()
    values = [parts(watch, 0) for watch in watches]
    assert values[0] == values[2] != values[1]


def test_hooks_are_where_they_are_needed_and_gone_afterwards() -> None:
    model = small()
    plain = Cockpit(model, [NormTest()])
    assert not model[1]._forward_hooks
    watch = Cockpit(model, [NormTest()])
    watch.add(ActivationStats())
    assert model[1]._forward_hooks
    track(watch, model, 0)
    watch.close()
    plain.close()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.mark.parametrize("interval", [1, 3])
def test_the_training_is_bit_identical(interval: int) -> None:
    def trained(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=True),
            nn.Dropout(0.3),
            nn.Flatten(2),
            nn.TransformerEncoderLayer(16, 2, 8, batch_first=True),
            nn.Flatten(),
            nn.Linear(48, 3),
        )
        opt = torch.optim.Adam(model.parameters())
        schedule = schedules.linear(interval)
        kinds = (ActivationStats, AttentionStats, NonFinite, ParameterStats)
        watch = Cockpit(model, [kind(schedule) for kind in kinds]) if watched else None
        for step in range(7):
            opt.zero_grad()
            loss = model(torch.randn(4, 1, 6, 6)).square().mean()
            if watch is None:
                loss.backward()
            else:
                with watch(step, loss=loss):
                    loss.backward()
            opt.step()
        if watch is not None:
            watch.close()
            assert set(watch.get_output()[6]) == {kind.__name__ for kind in kinds}
        return [torch.get_rng_state(), *model.state_dict().values()]

    for plain, watched in zip(trained(False), trained(True), strict=True):
        assert torch.equal(plain, watched)


# -- when nothing can be seen ---------------------------------------------------------------------


def test_bare_parameters() -> None:
    model = small()
    watch = Cockpit(model.parameters(), [ActivationStats()])
    with pytest.warns(
        CockpitWarning, match=r"the cockpit is given the model, Cockpit\(model, ...\)"
    ):
        track(watch, model, 0)


def test_a_model_that_was_not_called() -> None:
    watch, other = Cockpit(small(), [ActivationStats()]), small()
    with pytest.warns(CockpitWarning, match="no module of the model was called with gradients"):
        track(watch, other, 0)


def test_a_need_that_fails_harms_nothing() -> None:
    @dataclass(frozen=True)
    class Failing(Sums):
        def see(self, name: str, call: Any, output: Any) -> Tensor | None:
            raise ArithmeticError("cannot")

    model = small()
    watch = Cockpit(model, [Seen(sums=Failing()), ActivationStats()])
    with pytest.warns(
        CockpitWarning, match="Seen was not checked: .* of 0: ArithmeticError: cannot"
    ):
        track(watch, model, 0)
    assert set(watch.get_output()[0]) == {"ActivationStats"}


def test_a_schedule_that_ends_with_the_training() -> None:
    model, plan = small(), [True, False, True]
    watch = Cockpit(model, [ActivationStats(lambda step: plan[step])])
    for step in range(3):
        track(watch, model, step)
    assert set(watch.get_output()) == {0, 2}


def test_a_step_that_failed_can_be_repeated() -> None:
    model = small()
    watch = Cockpit(model, [ActivationStats(schedules.at([1]))])
    track(watch, model, 0)
    with pytest.raises(KeyError), watch(1, loss=model(torch.randn(5, 3)).sum()):
        raise KeyError
    track(watch, model, 1)
    assert set(watch.get_output()) == {1}


def test_of_several_micro_batches_the_first_is_looked_at() -> None:
    model, seen = small(), Seen()
    watch = Cockpit(model, [seen])
    for step in range(2):
        first = torch.randn(5, 3)
        for k, x in enumerate([first, torch.randn(5, 3)]):
            loss = model(x).square().sum(1).mean()
            with watch(step, loss=loss / 2, micro_batch=(k, 2)):
                (loss / 2).backward()
        assert parts(watch, step)["2"] == pytest.approx(model(first).sum().item(), abs=1e-5)


# -- ActivationStats ------------------------------------------------------------------------------


class Chosen(nn.Module):
    """Returns what it is told to, whatever the input, but depends on it."""

    def __init__(self, *modules: nn.Module, values: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.inner, self.values = nn.ModuleList(modules), values

    def forward(self, x: Tensor) -> Tensor:
        return sum(module(self.values * self.weight).sum() for module in self.inner) * x


def stats_of(module: nn.Module, values: Tensor, **settings: Any) -> dict[str, float]:
    model = Chosen(module, values=values)
    watch = Cockpit(model, [ActivationStats(**settings)])
    loss = model(torch.ones(1)).sum()
    with watch(0, loss=loss):
        loss.backward()
    return {part.removesuffix("/inner.0"): value for part, value in parts(watch, 0).items()}


def test_saturation() -> None:
    x = torch.tensor([[-9.0, -1.0, 0.0, 1.0], [2.0, 3.0, 4.0, 5.0]])
    assert stats_of(nn.Tanh(), x)["saturated"] == 5 / 8
    assert stats_of(nn.Sigmoid(), 2 * x)["saturated"] == 5 / 8
    assert "saturated" not in stats_of(nn.ReLU(), x)


def test_dormant_units() -> None:
    x = torch.ones(6, 4)
    x[:, 0], x[:, 1] = 0, 0.05
    assert stats_of(nn.ReLU(), x)["dormant"] == 1 / 4
    assert stats_of(nn.ReLU(), x, tau=0.1)["dormant"] == 2 / 4
    assert stats_of(nn.ReLU(), x, tau=0)["dormant"] == 1 / 4
    assert stats_of(nn.ReLU(), -x)["dormant"] == 1  # all are silent


class ChannelsNorm(nn.LayerNorm):
    """Normalises over the channels of images, as torchvision's ConvNeXt does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    ("module", "shape", "units"),
    [
        (ChannelsNorm(3, elementwise_affine=False), (5, 3, 4, 4), 1),
        (nn.ReLU(), (5, 3), 1),
        (nn.ReLU(), (5, 4, 3), 2),
        (nn.ReLU(), (5, 3, 4, 4), 1),
        (nn.BatchNorm1d(3, affine=False, track_running_stats=False), (5, 3, 4), 1),
        (nn.LayerNorm(3, elementwise_affine=False), (5, 4, 4, 3), 3),
        (nn.ReLU(), (3,), 0),
    ],
)
def test_units(module: nn.Module, shape: tuple[int, ...], units: int) -> None:
    x = torch.rand(shape).double() + 1
    x.select(units, 1).zero_()
    h = module(x)
    activity = h.abs().movedim(units, 0).reshape(shape[units], -1).mean(1)
    tau = float(activity.sort().values[:2].mean() / activity.mean())
    assert stats_of(module, x, tau=tau)["dormant"] == pytest.approx(1 / 3)


def test_outputs_that_are_not_finite() -> None:
    x = torch.tensor([[0.0, 1.0], [math.nan, 2.0]])
    stats = stats_of(nn.ReLU(), x)
    assert stats["zeros"] == 1 / 4
    for name in ("mean", "std", "rms", "kurtosis", "dormant"):
        assert math.isnan(stats[name])


def test_half_precision_is_computed_in_single() -> None:
    x = torch.full((2, 300), 300.0).half()
    assert stats_of(nn.ReLU(), x)["rms"] == pytest.approx(300)


def test_which_modules() -> None:
    def names(**settings: Any) -> list[str]:
        model = nn.Sequential(small(), nn.Flatten(), nn.Dropout())
        watch = Cockpit(model, [ActivationStats(**settings)])
        track(watch, model, 0)
        return [part.removeprefix("mean/") for part in parts(watch, 0) if part.startswith("mean/")]

    assert names() == ["0.0", "0.1", "0.2", "2"]
    assert names(modules=[nn.ReLU]) == ["0.1"]
    assert names(modules=["0.*"]) == ["0.0", "0.1", "0.2"]
    assert names(modules=["0", nn.Flatten]) == ["0", "1"]
    with pytest.warns(CockpitWarning, match=r"no module of those in modules=\('conv\*',\)"):
        assert names(modules=["conv*"]) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": -1.0}, "a tau of at least 0, got -1.0"),
        ({"modules": []}, "an empty list of modules"),
        ({"modules": "relu"}, r"Write modules=\['relu'\]"),
        ({"modules": [int]}, "got <class 'int'>"),
        ({"modules": [nn.ReLU()]}, r"got ReLU\(\)"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CockpitError, match=message):
        ActivationStats(**settings)


# -- NonFinite ------------------------------------------------------------------------------------


def test_the_first_module_and_its_samples() -> None:
    model = small()
    watch = Cockpit(model, [NonFinite()])
    for step in range(2):
        x = torch.randn(5, 3)
        if step:
            x[1, 2], x[4, 0] = math.inf, math.nan
        track(watch, model, step, x)
    healthy, ill = parts(watch, 0), parts(watch, 1)
    assert healthy == {"modules": 0, "gradients": 0, "samples": 0}  # without details
    assert ill["modules"] == 4
    assert ill["gradients"] == 4
    assert ill["samples"] == 2
    assert ill["values/0"] == 8
    first = min((n for n in ("0", "1", "2") if ill[f"values/{n}"]), key=lambda n: ill[f"order/{n}"])
    assert first == "0"
    by_sample = watch.run().arrays("NonFinite", "by_sample")
    assert by_sample["step"].tolist() == [1]
    assert by_sample["value"][0].tolist() == [False, True, False, False, True]


def test_gradients_alone_may_be_infinite() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((0 * self.first(x)).abs().sqrt())

    model = Root()
    watch = Cockpit(model, [NonFinite()])
    track(watch, model, 0)
    found = parts(watch, 0)
    assert (found["modules"], found["samples"], found["gradients"]) == (0, 0, 2)
    hit = [p for p, _ in model.named_parameters() if found[f"hit/{p}"]]
    assert hit == ["first.weight", "first.bias"]


def test_outputs_of_all_kinds() -> None:
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(3, 2, batch_first=True)

        def forward(self, x: Tensor) -> dict[str, Any]:
            hidden = self.layer(x.unsqueeze(1))[0][:, 0]
            return {"loss": hidden.sum() * math.inf, "more": [hidden, None, x.long()]}

    model = Kinds()
    watch = Cockpit(model, [NonFinite()])
    loss = model(torch.randn(5, 3))["more"][0].sum()
    with watch(0, loss=loss):
        loss.backward()
    found = parts(watch, 0)
    assert found["modules"] == found["values/Kinds"] == 1
    assert found["values/layer"] == 0
    assert "samples" not in found  # no output has the samples in its first dimension alone


# -- AttentionStats -------------------------------------------------------------------------------


class Attends(nn.Module):
    def __init__(self, attention: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.attention, self.args, self.kwargs = attention, args, kwargs
        self.first = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x * self.first, *self.args, **self.kwargs)[0]


def attended(model: Attends, x: Tensor) -> dict[str, Any]:
    watch = Cockpit(model, [AttentionStats()])
    loss = model(x).square().mean()
    with watch(0, loss=loss):
        loss.backward()
    arrays = watch.run().arrays()
    return parts(watch, 0) | dict(zip(arrays["part"], arrays["value"], strict=True))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


CAUSAL = torch.ones(4, 4).triu(1).bool()
PADDED = torch.tensor([[False] * 4, [False, False, True, True], [False, False, False, True]])
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "weights not asked for": {"need_weights": False},
    "boolean": {"attn_mask": CAUSAL},
    "causal": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    "added": {"attn_mask": random(4, 4)},
    "per head": {"attn_mask": random(6, 4, 4)},
    "padding": {"key_padding_mask": PADDED},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDED},
}


@pytest.mark.parametrize("piece", [2**23, 1])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_masks(masks: str, batch_first: bool, piece: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(attention_file, "PIECE", piece)
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first, dropout=0.0).double()
    x, kwargs = random(3, 4, 8), MASKS[masks]
    given = x if batch_first else x.transpose(0, 1)
    found = attended(Attends(module, given, given, **kwargs), given)

    asked = {**kwargs, "need_weights": True, "is_causal": False, "average_attn_weights": False}
    with torch.no_grad():
        weights = module(given, given, given, **asked)[1]  # [N, heads, queries, keys]
        q, k, _ = (x @ module.in_proj_weight.T + module.in_proj_bias).chunk(3, -1)
    entropy = torch.where(weights > 0, -weights * weights.log(), 0).sum(-1).mean((0, 2))
    np.testing.assert_allclose(found["entropy/attention"], entropy, rtol=1e-9)
    allowed = weights > 0  # [N, heads, queries, keys]
    logits = torch.stack([q[..., s] @ k[..., s].mT / 2 for s in (slice(4), slice(4, 8))], 1)
    largest = logits.abs()[allowed].max()
    assert found["largest_logit/attention"] == pytest.approx(largest.item(), rel=1e-9)
    room = allowed.sum(-1).double().log().mean((0, 2))  # that each head could have at most
    assert found["spread/attention"] == pytest.approx((entropy / room).mean().item(), rel=1e-6)


def test_attention_between_different_widths() -> None:
    module = nn.MultiheadAttention(8, 2, kdim=5, vdim=3, bias=False, batch_first=True).double()
    query, key, value = random(3, 4, 8), random(3, 6, 5), random(3, 6, 3)
    found = attended(Attends(module, key, value), query)
    weights = module(query, key, value, average_attn_weights=False)[1]
    entropy = -(weights * weights.log()).sum(-1).mean((0, 2))
    np.testing.assert_allclose(found["entropy/attention"], entropy.detach(), rtol=1e-9)


def test_attention_without_a_batch_dimension() -> None:
    module = nn.MultiheadAttention(8, 2).double()
    x, mask = random(4, 8), torch.tensor([False, False, True, False])
    found = attended(Attends(module, x, x, key_padding_mask=mask), x)
    weights = module(x, x, x, key_padding_mask=mask, average_attn_weights=False)[1][..., ~mask]
    entropy = -(weights * weights.log()).sum(-1).mean(1)
    np.testing.assert_allclose(found["entropy/attention"], entropy.detach(), rtol=1e-9)


def test_attention_is_computed_in_single_precision_under_autocast() -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 4, 8)
    model = Attends(module, x, x)
    expected = attended(model, x)["entropy/attention"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attended(model, x)["entropy/attention"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class SelfAttention(nn.Module):
    """Attention of a model that was written elsewhere."""

    def __init__(self, returns_weights: bool) -> None:
        super().__init__()
        self.layer, self.returns_weights = nn.Linear(8, 8), returns_weights

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        h = self.layer(x)
        weights = (h @ h.transpose(1, 2)).softmax(-1).unsqueeze(1)  # [N, 1, T, T]
        return weights[:, 0] @ x, weights if self.returns_weights else None


def test_attention_that_returns_its_weights() -> None:
    model = Attends(SelfAttention(True).double())
    x = random(3, 4, 8)
    found = attended(model, x)
    weights = model.attention(x)[1].detach()
    entropy = -(weights * weights.log()).sum(-1).mean().item()
    assert found == {
        "entropy/attention": pytest.approx(entropy, rel=1e-6),
        "spread/attention": pytest.approx(entropy / math.log(4), rel=1e-6),
    }


class BiasedAttention(SelfAttention):
    """Returns what is added to the logits before the weights, in the same shape, as T5 does."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        output, weights = super().forward(x)
        bias = self.layer.weight[:4, :4].expand(len(x), 1, 4, 4)
        return (output, bias) if weights is None else (output, bias, weights)


def test_attention_that_returns_more_of_the_shape_of_its_weights() -> None:
    model, x = Attends(BiasedAttention(True).double()), random(3, 4, 8)
    weights = model.attention(x)[2].detach()
    entropy = -(weights * weights.log()).sum(-1).mean()
    assert attended(model, x)["entropy/attention"] == pytest.approx(entropy.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (BiasedAttention(False), "BiasedAttention returns no attention weights"),
        (SelfAttention(False), "SelfAttention returns no attention weights"),
        (nn.MultiheadAttention(8, 2, add_zero_attn=True, batch_first=True), "keys of its own"),
    ],
)
def test_attention_that_cannot_be_had_is_noted_once(module: nn.Module, reason: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.good, self.bad = nn.MultiheadAttention(8, 2, batch_first=True), module

        def forward(self, x: Tensor) -> Tensor:
            x = self.good(x, x, x)[0]
            return (self.bad(x) if isinstance(self.bad, SelfAttention) else self.bad(x, x, x))[0]

    model = Model()
    watch = Cockpit(model, [AttentionStats()])
    for step in range(3):
        track(watch, model, step, torch.randn(3, 4, 8))
        assert parts(watch, step).keys() == {"spread/good", "largest_logit/good"}
    events = watch.run().events()
    assert list(events["subject"]) == ["AttentionStats/bad"]
    assert list(events["kind"]) == ["not-checked"]
    assert reason in events["message"][0]


def test_a_model_without_attention_is_noted_without_a_warning() -> None:
    model = small()
    watch = Cockpit(model, [AttentionStats()])
    track(watch, model, 0)
    assert "no attention module was called" in watch.run().events()["message"][0]
