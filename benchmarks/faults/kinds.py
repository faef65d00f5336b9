"""The kinds of fault, and on which architectures the rules know each variant of them."""

from __future__ import annotations

from functools import partial

from benchmarks.faults import of_data as data
from benchmarks.faults import of_loss as loss
from benchmarks.faults import of_signals as signals
from benchmarks.faults import of_steps as steps
from benchmarks.faults.fault import Kind

ALL_1 = ("mlp", "transformer"), ("cnn", "resnet", "regression")
ALL_2 = ("cnn", "resnet"), ("mlp", "transformer", "regression")
CLASSES_1 = ("mlp", "transformer"), ("cnn", "resnet")
CLASSES_2 = ("cnn", "resnet"), ("mlp", "transformer")
IMAGES_1 = ("mlp", "resnet"), ("cnn",)
IMAGES_2 = ("cnn",), ("mlp", "resnet")
FLOATS_1 = ("mlp", "resnet"), ("cnn", "regression")
FLOATS_2 = ("cnn", "regression"), ("mlp", "resnet")
PLAIN_1 = ("mlp",), ("cnn", "regression")
PLAIN_2 = ("cnn", "regression"), ("mlp",)
NORMED = ("resnet",), ("transformer",)
LANGUAGE = ("transformer",), ("transformer",)
NUMBERS = ("regression",), ("regression",)
"""Architectures in two groups: the rules know variant a on the first ones, and b on the others."""

SGD = ("sgd", "momentum")
"""Optimizers to which the scale of the gradient matters."""

STUCK = ("LossNotDecreasing",)
STILL = ("UnchangedTensor", "WeightUpdateRatio", "LossNotDecreasing")

KINDS: tuple[Kind, ...] = (
    # -- the optimizer and its steps
    Kind(
        "rate-diverging",
        "learning-rate-too-high",
        steps.diverging,
        steps.growing,
        ALL_1,
        baselines=("WeightUpdateRatio",),
    ),
    Kind(
        "rate-oscillating",
        "learning-rate-too-high",
        steps.edge,
        steps.warmed_up_too_far,
        ALL_2,
        baselines=("WeightUpdateRatio",),
    ),
    Kind(
        "rate-too-low",
        "learning-rate-too-low",
        steps.too_low,
        steps.far_too_low,
        ALL_1,
        baselines=STILL,
    ),
    Kind(
        "rate-zero",
        "learning-rate-zero",
        steps.rate_of_zero,
        steps.rate_divided_to_zero,
        ALL_2,
        also=("no-update",),
        baselines=STILL,
    ),
    Kind(
        "no-update",
        "no-update",
        steps.no_step,
        steps.zeroed_before_the_step,
        ALL_1,
        baselines=STILL,
    ),
    Kind(
        "frozen",
        "frozen-parameters",
        steps.first_frozen,
        steps.middle_frozen,
        ALL_2,
        baselines=("UnchangedTensor", "WeightUpdateRatio"),
    ),
    Kind(
        "detached",
        "no-gradient",
        loss.detached,
        loss.untracked,
        PLAIN_1,
        baselines=("UnchangedTensor", "VanishingGradient", "WeightUpdateRatio"),
    ),
    Kind(
        "not-in-optimizer",
        "not-in-optimizer",
        steps.last_not_listed,
        steps.middle_not_listed,
        ALL_1,
        baselines=("UnchangedTensor", "WeightUpdateRatio"),
    ),
    Kind("twice-in-optimizer", "twice-in-optimizer", steps.two_optimizers, steps.all_twice, ALL_2),
    Kind("not-zeroed", "gradients-not-zeroed", steps.never_zeroed, steps.zeroed_at_epochs, ALL_2),
    Kind(
        "evaluation-mode",
        "evaluation-mode",
        steps.evaluating,
        steps.evaluating_after_the_first_look,
        NORMED,
    ),
    Kind("batch-too-small", "batch-too-small", steps.batch_of(1), steps.batch_of(2), ALL_1),
    Kind(
        "batch-too-large",
        "batch-needlessly-large",
        steps.batch_of(1000),
        steps.batch_of(800),
        (("mlp",), ("regression",)),
    ),
    Kind(
        "weight-decay",
        "weight-decay-dominates",
        steps.decay_decoupled,
        steps.decay_strong,
        ALL_2,
    ),
    Kind(
        "loss-spike",
        "loss-spikes",
        steps.bad_batch,
        steps.rate_bump,
        ALL_1,
        baselines=("SpikeDetection",),
    ),
    Kind(
        "low-precision",
        "lost-updates",
        steps.bfloat16,
        steps.float16,
        PLAIN_2,
        baselines=("UnchangedTensor",),
    ),
    Kind(
        "clipping-always",
        "clipping-always",
        steps.clipped_to(1e-3),
        steps.clipped_to(1e-2),
        ALL_1,
        optimizers=SGD,
    ),
    Kind("clipping-never", "clipping-never", steps.clipped_to(1e4), steps.clipped_to(1e6), ALL_2),
    Kind(
        "stalled",
        "stalled",
        steps.stopped_early,
        steps.decayed_at_once,
        ALL_1,
        also=("learning-rate-too-low",),
        baselines=STILL,
    ),
    # -- signals and gradients
    Kind(
        "vanishing",
        "vanishing-gradients",
        signals.deep_sigmoids,
        signals.small_gains,
        PLAIN_2,
        also=("bad-initialisation",),
        baselines=("VanishingGradient",),
    ),
    Kind(
        "exploding",
        "exploding-gradients",
        signals.large_gains,
        signals.amplified,
        PLAIN_1,
        also=("bad-initialisation",),
        baselines=("ExplodingTensor",),
    ),
    Kind(
        "dead-units",
        "dead-units",
        signals.dead,
        signals.dead_from_the_start,
        FLOATS_1,
        baselines=("DeadRelu",),
    ),
    Kind(
        "dormant-units",
        "dormant-units",
        signals.dormant,
        signals.dormant_at_first,
        PLAIN_2,
        also=("dead-units", "bad-initialisation"),
    ),
    Kind(
        "saturated",
        "saturated-activations",
        signals.saturated_tanh,
        signals.saturated_sigmoid,
        PLAIN_1,
        also=("bad-initialisation",),
        baselines=("SaturatedActivation",),
    ),
    Kind(
        "one-layer-large",
        "bad-initialisation",
        signals.one_layer_times(100.0),
        signals.one_layer_times(30.0),
        PLAIN_2,
        also=("exploding-gradients",),
    ),
    Kind(
        "one-layer-small",
        "bad-initialisation",
        signals.one_layer_times(1 / 300.0),
        signals.one_layer_times(1 / 100.0),
        PLAIN_1,
        also=("vanishing-gradients",),
    ),
    Kind(
        "symmetric-units",
        "symmetric-units",
        signals.constant,
        signals.symmetric_layer,
        PLAIN_2,
        also=("bad-initialisation",),
    ),
    Kind(
        "norms-missing",
        "normalisation-missing",
        signals.no_norms,
        signals.no_norms_deep,
        NORMED,
        also=("exploding-gradients", "vanishing-gradients", "bad-initialisation"),
    ),
    Kind(
        "norm-misplaced",
        "normalisation-misplaced",
        signals.norm_last,
        signals.batch_norm_last,
        IMAGES_2,
    ),
    Kind(
        "attention-collapse",
        "attention-entropy-collapse",
        signals.sharp_attention,
        signals.sharper_attention,
        LANGUAGE,
        also=("attention-logit-growth",),
    ),
    Kind(
        "attention-logits",
        "attention-logit-growth",
        partial(steps.attention_rates, factor=30.0),
        partial(steps.attention_rates, factor=60.0),
        LANGUAGE,
        also=("attention-entropy-collapse",),
    ),
    Kind(
        "leaking",
        "leaking-between-samples",
        signals.mean_over_batch,
        signals.mixed_samples,
        (("mlp", "regression"), ("cnn", "transformer")),
    ),
    # -- the loss
    Kind("double-softmax", "double-softmax", loss.double_softmax, loss.sigmoid_before, CLASSES_1),
    Kind("softmax-missing", "softmax-missing", loss.of_scores, loss.of_probabilities, CLASSES_2),
    Kind("squashed-scores", "squashed-scores", loss.relu_before, loss.tanh_before, CLASSES_1),
    Kind(
        "wrong-reduction",
        "wrong-reduction",
        loss.summed,
        loss.divided_twice,
        ALL_2,
        also=("learning-rate-too-high", "learning-rate-too-low"),
        optimizers=SGD,
    ),
    Kind(
        "initial-loss",
        "initial-loss",
        signals.large_head,
        signals.sure_head,
        CLASSES_2,
        also=("bad-initialisation",),
    ),
    Kind(
        "targets-broadcast",
        "targets-broadcast",
        loss.target_without_column,
        loss.output_without_column,
        NUMBERS,
    ),
    Kind(
        "not-finite",
        "non-finite",
        data.nan_pixel,
        data.constant_sample,
        FLOATS_2,
        baselines=("ExplodingTensor", "NonFiniteLoss"),
    ),
    # -- the data
    Kind(
        "inputs-bytes",
        "inputs-not-scaled",
        data.bytes_,
        data.unscaled,
        FLOATS_1,
        also=("inputs-mis-scaled",),
    ),
    Kind(
        "inputs-mis-scaled",
        "inputs-mis-scaled",
        data.offset,
        data.one_feature,
        FLOATS_2,
        also=("inputs-not-scaled",),
    ),
    Kind(
        "labels-shuffled",
        "labels-shuffled",
        data.shuffled_once,
        data.shuffled_in_the_batch,
        ALL_1,
        baselines=STUCK,
    ),
    Kind(
        "labels-partly-wrong",
        "labels-partly-wrong",
        data.partly_random,
        data.partly_swapped,
        IMAGES_1,
    ),
    Kind("no-shuffling", "no-shuffling", data.unshuffled, data.shuffled_in_blocks, FLOATS_2),
    Kind("class-imbalance", "class-imbalance", data.one_class_mostly, data.long_tail, IMAGES_2),
    Kind("overfitting", "overfitting", data.few_samples(64), data.few_samples(128), ALL_1),
    Kind(
        "underfitting", "underfitting", data.tiny, data.drowned_in_dropout, PLAIN_2, baselines=STUCK
    ),
)

BY_NAME = {kind.name: kind for kind in KINDS}
