"""What each page on an instrument asks, and which trainings it shows: a page for every instrument, by question."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """A page of an instrument.

    Args:
        name: The instrument.
        question: What it answers.
        left: The training on the left, healthy.
        right: The training on the right, unhealthy.
        same: Whether both pictures have the same axes.
        rules: Codes of the doctor's rules that look at the same, beside those that name the instrument.
    """

    name: str
    question: str
    left: str
    right: str
    same: bool = True
    rules: tuple[str, ...] = ()


QUESTIONS: dict[str, tuple[Page, ...]] = {
    "How does it go?": (
        Page("loss", "Does the training get anywhere?", "mlp", "fast"),
        Page(
            "accuracy",
            "Does it hold on data that it was not trained on?",
            "mlp",
            "few",
            rules=("CP110", "CP111"),
        ),
        Page(
            "learning-rate",
            "Is the schedule the one that was meant?",
            "cosine",
            "divided",
            rules=("CP109",),
        ),
        Page("step-time", "Does a step take as long as it did?", "batch-16", "looks-back"),
        Page(
            "non-finite",
            "Where do NaN and infinities come from?",
            "mlp",
            "constant-image",
            same=False,
        ),
    ),
    "Is the step of the right length?": (
        Page(
            "alpha",
            "Do steps end before the minimum or beyond it?",
            "mlp",
            "slow",
            rules=("CP102",),
        ),
        Page(
            "alpha-distribution", "How often do steps overshoot?", "mlp", "fast", rules=("CP101",)
        ),
        Page(
            "alpha-fit",
            "How much of the valley does a step cross?",
            "mlp",
            "slow",
            rules=("CP102",),
        ),
        Page(
            "update-ratio",
            "How far does a step move the weights, relative to their size?",
            "mlp",
            "divided",
        ),
        Page(
            "distance", "Do steps lead away, or undo each other?", "mlp", "fast", rules=("CP101",)
        ),
        Page(
            "hess-max-ev",
            "Is the learning rate too high for the sharpest direction?",
            "mlp",
            "fast",
            rules=("CP101",),
        ),
        Page(
            "preconditioned-sharpness",
            "Is Adam's learning rate too high for the sharpest direction?",
            "adam",
            "adam-fast",
            rules=("CP101",),
        ),
        Page(
            "critical-sharpness",
            "How much larger could this step have been?",
            "mlp",
            "slow",
            rules=("CP101", "CP102"),
        ),
        Page(
            "directional-curvature",
            "Does a step along the gradient still lower the loss?",
            "mlp",
            "rising",
            rules=("CP101",),
        ),
    ),
    "Does every layer learn?": (
        Page(
            "update-ratio-layers", "Do all parameters move?", "mlp", "forgotten", rules=("CP204",)
        ),
        Page("grad-norm-layers", "Does every layer get a gradient?", "mlp", "sigmoids"),
        Page(
            "grad-histogram-layers",
            "In which layers are the gradients too small or too large?",
            "mlp",
            "sigmoids",
            rules=("CP601",),
        ),
        Page(
            "grad-histogram-2d-layers", "Which weights of a layer get gradients?", "mlp", "sigmoids"
        ),
        Page(
            "lost-updates",
            "Do updates arrive in the weights, or does rounding take them?",
            "mlp",
            "bfloat16",
        ),
        Page("parameter-norm", "Do the weights grow or shrink without end?", "mlp", "decay"),
        Page("parameter-extremes", "Do single weights grow far beyond the others?", "mlp", "fast"),
        Page(
            "parameter-histogram-layers",
            "Are the weights of a layer spread, or all alike?",
            "mlp",
            "constant",
            rules=("CP607",),
        ),
    ),
    "Are the gradients of the right size?": (
        Page("grad-norm", "Does the gradient keep its size?", "mlp", "not-zeroed"),
        Page(
            "grad-histogram",
            "Are there gradients far larger than the others?",
            "mlp",
            "bytes",
            rules=("CP401",),
        ),
        Page(
            "grad-histogram-history",
            "Do the gradients collapse or burst?",
            "mlp",
            "sigmoids",
            rules=("CP601",),
        ),
        Page("grad-histogram-2d", "Which weights get which gradients?", "mlp", "constant"),
        Page(
            "adam-staleness",
            "Has Adam an up-to-date idea of the gradient's size?",
            "text",
            "text-stale",
            rules=("CP103",),
        ),
        Page(
            "adam-staleness-layers",
            "For which parameters is Adam's estimate out of date?",
            "text",
            "text-stale",
            rules=("CP103",),
        ),
    ),
    "Is the batch large enough?": (
        Page(
            "grad-tests", "How much of the gradient is noise?", "mlp", "batch-4", rules=("CP106",)
        ),
        Page("grad-tests-bands", "May a step lead uphill?", "mlp", "batch-4", rules=("CP106",)),
        Page("gradient-noise-scale", "Which batch size would do?", "mlp", "batch-1000"),
        Page(
            "cabs",
            "Does the batch size fit the learning rate?",
            "batch-32",
            "batch-1000",
            rules=("CP106",),
        ),
        Page("mean-gsnr", "Do the samples agree where to go?", "mlp", "shuffled", rules=("CP308",)),
        Page(
            "gradient-alignment",
            "Do samples pull in the same direction?",
            "mlp",
            "shuffled",
            rules=("CP308",),
        ),
        Page(
            "early-stopping",
            "Is there anything left in the gradient but noise?",
            "mlp",
            "shuffled",
            rules=("CP308",),
        ),
        Page(
            "per-sample-outliers",
            "Which samples have unusually large gradients?",
            "mlp",
            "some-larger",
            rules=("CP309",),
        ),
    ),
    "What shape has the loss?": (
        Page("hess-trace", "How strongly is the loss curved?", "mlp", "bytes", rules=("CP401",)),
        Page(
            "hess-trace-layers",
            "Which layers make the loss steep?",
            "mlp",
            "bytes",
            rules=("CP401",),
        ),
        Page(
            "hessian-spectrum",
            "Is the curvature that of a few directions?",
            "mlp",
            "bytes",
            rules=("CP401",),
        ),
        Page(
            "hessian-spectrum-history", "Which directions get sharper?", "mlp", "bytes", same=False
        ),
        Page(
            "kronecker-spectrum", "Which layer is the sharpest?", "mlp", "bytes", rules=("CP401",)
        ),
        Page(
            "kronecker-rank",
            "In how many directions can a layer learn?",
            "mlp",
            "constant",
            rules=("CP607",),
        ),
        Page(
            "tic",
            "Will the test loss be far above the training loss?",
            "mlp",
            "fast",
            rules=("CP110",),
        ),
    ),
    "Do signals get through the layers?": (
        Page("activation-zeros", "Are units dead?", "mlp", "fast"),
        Page("activation-dormant", "Do units contribute nothing?", "mlp", "dormant"),
        Page(
            "activation-saturated",
            "Are sigmoids and tanh stuck at their ends?",
            "tanh",
            "tanh-bytes",
        ),
        Page("activation-scale", "Do activations keep their size?", "mlp", "bytes"),
        Page(
            "activation-depth",
            "Does the signal survive the way through the layers?",
            "deep",
            "deep-default",
            rules=("CP606",),
        ),
        Page("activation-outliers", "Do a few activations stand out?", "mlp", "some-larger"),
        Page("attention-entropy", "Do heads look at one place only?", "text", "text-attention"),
        Page(
            "attention-logits", "Do attention logits grow out of bounds?", "text", "text-attention"
        ),
    ),
}
"""The questions, and the pages that help to answer them."""
