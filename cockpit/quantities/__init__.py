"""The quantities: one small class a file."""

from cockpit.quantities.activation_stats import ActivationStats
from cockpit.quantities.adam_staleness import AdamStaleness
from cockpit.quantities.alpha import Alpha
from cockpit.quantities.attention_stats import AttentionStats
from cockpit.quantities.cabs import CABS
from cockpit.quantities.directional_curvature import DirectionalCurvature
from cockpit.quantities.distance import Distance
from cockpit.quantities.early_stopping import EarlyStopping
from cockpit.quantities.grad_hist import GradHist1d, GradHist2d
from cockpit.quantities.grad_norm import GradNorm
from cockpit.quantities.gradient_alignment import GradientAlignment
from cockpit.quantities.gradient_noise_scale import GradientNoiseScale
from cockpit.quantities.gradient_tests import InnerTest, NormTest, OrthoTest
from cockpit.quantities.hess_max_ev import HessMaxEV
from cockpit.quantities.hess_trace import HessTrace
from cockpit.quantities.hessian_spectrum import HessianSpectrum
from cockpit.quantities.kronecker_spectrum import KroneckerSpectrum
from cockpit.quantities.loss import Loss
from cockpit.quantities.lost_updates import LostUpdates
from cockpit.quantities.mean_gsnr import MeanGSNR
from cockpit.quantities.non_finite import NonFinite
from cockpit.quantities.parameter_stats import ParameterStats
from cockpit.quantities.parameters import Parameters
from cockpit.quantities.per_sample_outliers import PerSampleOutliers
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.quantities.sharpness import CriticalSharpness, PreconditionedSharpness
from cockpit.quantities.shrinkage import Shrinkage
from cockpit.quantities.tic import TICDiag, TICTrace
from cockpit.quantities.time import Time
from cockpit.quantities.update_ratio import UpdateRatio
from cockpit.quantities.update_size import UpdateSize
from cockpit.quantities.update_slopes import UpdateSlopes

__all__ = [
    "CABS",
    "ActivationStats",
    "AdamStaleness",
    "Alpha",
    "AttentionStats",
    "CriticalSharpness",
    "DirectionalCurvature",
    "Distance",
    "EarlyStopping",
    "GradHist1d",
    "GradHist2d",
    "GradNorm",
    "GradientAlignment",
    "GradientNoiseScale",
    "HessMaxEV",
    "HessTrace",
    "HessianSpectrum",
    "InnerTest",
    "KroneckerSpectrum",
    "Loss",
    "LostUpdates",
    "MeanGSNR",
    "NonFinite",
    "NormTest",
    "OrthoTest",
    "Outcome",
    "ParameterStats",
    "Parameters",
    "PerSampleOutliers",
    "PreconditionedSharpness",
    "Quantity",
    "Shrinkage",
    "TICDiag",
    "TICTrace",
    "Time",
    "UpdateRatio",
    "UpdateSize",
    "UpdateSlopes",
]
