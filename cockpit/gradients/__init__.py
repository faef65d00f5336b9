"""Individual gradients: one gradient per sample of the mini-batch, from the model as it is, without storing them."""

from cockpit.gradients.batch import MEMORY_BUDGET, Batch, Draw
from cockpit.gradients.collector import Collector, plain_arithmetic
from cockpit.gradients.extension import BatchGradTransforms, HandleFeed
from cockpit.gradients.handle import Dense, IndividualGradients, Sum, Zero
from cockpit.gradients.joint import joint
from cockpit.gradients.recorder import Forward, Recorder
from cockpit.gradients.rules import Call, couples_samples, find_rule, rule_for
from cockpit.gradients.subsample import Subsampled
from cockpit.histograms import Bins, Drawn, Histogram, counted

__all__ = [
    "MEMORY_BUDGET",
    "Batch",
    "BatchGradTransforms",
    "Bins",
    "Call",
    "Collector",
    "Dense",
    "Draw",
    "Drawn",
    "Forward",
    "HandleFeed",
    "Histogram",
    "IndividualGradients",
    "Recorder",
    "Subsampled",
    "Sum",
    "Zero",
    "counted",
    "couples_samples",
    "find_rule",
    "joint",
    "plain_arithmetic",
    "rule_for",
]
