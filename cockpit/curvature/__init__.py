"""Curvature of the loss: products of Hessian and GGN with vectors, eigenvalues, traces, diagonals."""

from cockpit.curvature.closure import Differences, FirstPossible, Reevaluation, moved
from cockpit.curvature.ggn import other_leaves, sampled_backward
from cockpit.curvature.heads import Head, blocks_of, closed_forms
from cockpit.curvature.lanczos import Krylov, Spectrum, extremes
from cockpit.curvature.products import GGN, Curvature, Hessian

__all__ = [
    "GGN",
    "Curvature",
    "Differences",
    "FirstPossible",
    "Head",
    "Hessian",
    "Krylov",
    "Reevaluation",
    "Spectrum",
    "blocks_of",
    "closed_forms",
    "extremes",
    "moved",
    "other_leaves",
    "sampled_backward",
]
