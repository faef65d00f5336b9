"""Curvature of the loss: products of Hessian and GGN with vectors, eigenvalues, traces, diagonals."""

from cockpit.curvature.blocks import block_products
from cockpit.curvature.chain import chain
from cockpit.curvature.closure import Differences, FirstPossible, Reevaluation, moved
from cockpit.curvature.factors import (
    APPROXIMATIONS,
    factors_of,
    kronecker_factors,
    recursive_factors,
)
from cockpit.curvature.ggn import ExactRoot, Send, exact_root, other_leaves, sampled_backward
from cockpit.curvature.heads import Head, blocks_of, closed_forms
from cockpit.curvature.jacobians import (
    jac_mat_prod,
    jac_t_mat_prod,
    param_jac_mat_prod,
    param_jac_t_mat_prod,
    residual_mat_prod,
)
from cockpit.curvature.kronecker import Kronecker, KroneckerEigen
from cockpit.curvature.lanczos import Krylov, Spectrum, extremes
from cockpit.curvature.linearised import Linearised, refuse_coupled, unnoticed
from cockpit.curvature.losses import (
    hessian_mat_prod,
    sqrt_hessian,
    sqrt_hessian_sampled,
    sum_hessian,
    sum_of,
)
from cockpit.curvature.portions import Portion, Source
from cockpit.curvature.products import GGN, Curvature, Hessian
from cockpit.curvature.traces import Density, density, diagonal_samples

__all__ = [
    "APPROXIMATIONS",
    "GGN",
    "Curvature",
    "Density",
    "Differences",
    "ExactRoot",
    "FirstPossible",
    "Head",
    "Hessian",
    "Kronecker",
    "KroneckerEigen",
    "Krylov",
    "Linearised",
    "Portion",
    "Reevaluation",
    "Send",
    "Source",
    "Spectrum",
    "block_products",
    "blocks_of",
    "chain",
    "closed_forms",
    "density",
    "diagonal_samples",
    "exact_root",
    "extremes",
    "factors_of",
    "hessian_mat_prod",
    "jac_mat_prod",
    "jac_t_mat_prod",
    "kronecker_factors",
    "moved",
    "other_leaves",
    "param_jac_mat_prod",
    "param_jac_t_mat_prod",
    "recursive_factors",
    "refuse_coupled",
    "residual_mat_prod",
    "sampled_backward",
    "sqrt_hessian",
    "sqrt_hessian_sampled",
    "sum_hessian",
    "sum_of",
    "unnoticed",
]
