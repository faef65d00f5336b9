"""The quantities: one small class a file."""

from cockpit.quantities.adam_staleness import AdamStaleness
from cockpit.quantities.alpha import Alpha
from cockpit.quantities.cabs import CABS
from cockpit.quantities.distance import Distance
from cockpit.quantities.early_stopping import EarlyStopping
from cockpit.quantities.grad_hist import GradHist1d
from cockpit.quantities.grad_norm import GradNorm
from cockpit.quantities.gradient_alignment import GradientAlignment
from cockpit.quantities.gradient_noise_scale import GradientNoiseScale
from cockpit.quantities.gradient_tests import InnerTest, NormTest, OrthoTest
from cockpit.quantities.loss import Loss
from cockpit.quantities.lost_updates import LostUpdates
from cockpit.quantities.mean_gsnr import MeanGSNR
from cockpit.quantities.parameters import Parameters
from cockpit.quantities.per_sample_outliers import PerSampleOutliers
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.quantities.time import Time
from cockpit.quantities.update_ratio import UpdateRatio
from cockpit.quantities.update_size import UpdateSize

__all__ = [
    "CABS",
    "AdamStaleness",
    "Alpha",
    "Distance",
    "EarlyStopping",
    "GradHist1d",
    "GradNorm",
    "GradientAlignment",
    "GradientNoiseScale",
    "InnerTest",
    "Loss",
    "LostUpdates",
    "MeanGSNR",
    "NormTest",
    "OrthoTest",
    "Outcome",
    "Parameters",
    "PerSampleOutliers",
    "Quantity",
    "Time",
    "UpdateRatio",
    "UpdateSize",
]
