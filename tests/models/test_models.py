"""Every quantity on every model, against brute force; and the table that says so."""

from __future__ import annotations

import re

import pytest
from models.coverage import PAGE, page
from models.study import ROWS
from models.verdict import APPROXIMATE, EXACT, HOW, REFUSED, cells, unbiased
from models.zoo import ZOO, build

NO_ATTENTION = "no attention module was called whose weights can be had"
COUPLED = "normalises with the statistics of the batch, so the outputs of a sample depend on all"
NO_FACTORS = "no parameter has Kronecker factors"
TOO_FLAT = "after 8 evaluations of the loss it is known only that between"

WITH_WEIGHTS = {"VisionTransformer", "GPT-2"}
"""Models whose attention weights can be had: nn.MultiheadAttention, and the eager attention of transformers."""

OF_CONV1D = {"GPT-2", "GPT-2, dropout"}
"""Models whose layers are transformers' Conv1D, which the Kronecker factors do not know."""

OF_SAMPLES = {"HessTrace", "KroneckerSpectrum", "TICDiag", "TICTrace"}
"""Quantities of curvatures that are sums over the samples."""


def refusal(model: str, row: str) -> str | None:
    """Return the reason for which there is no value, as far as it has to be one; None where there is a value."""
    if row == "AttentionStats" and model not in WITH_WEIGHTS:
        return NO_ATTENTION
    if row in OF_SAMPLES and model in ("BatchNorm, training", "MobileNetV3, training"):
        return COUPLED
    if row == "KroneckerSpectrum" and model in OF_CONV1D:
        return NO_FACTORS
    if row == "CriticalSharpness" and model == "BERT":  # hundreds of updates do not raise its loss
        return TOO_FLAT
    return None


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("model", ZOO)
def test_cell(model: str, row: str) -> None:
    found, reason = cells(model)[row], refusal(model, row)
    if reason is not None:
        assert found.outcome == REFUSED, found
        assert re.search(reason, found.note), found.note
    elif row in HOW:
        assert found.outcome == APPROXIMATE, found
    else:
        assert found.outcome in (EXACT, APPROXIMATE), found


@pytest.mark.parametrize("model", [name for name in ZOO if not build(name).coupled])
def test_the_sampled_ggn_is_unbiased(model: str) -> None:
    assert unbiased(model)


def test_the_page_is_what_was_found() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/coverage.md is stale: make coverage-table"
    )
