"""The rules: one kind of fault a file. Their order here is that of their codes."""

from cockpit.doctor.rule import Rule
from cockpit.doctor.rules import (
    double_softmax,
    evaluation_mode,
    frozen,
    gradients_not_zeroed,
    initial_loss,
    inputs_not_scaled,
    learning_rate_zero,
    lost_updates,
    no_gradient,
    no_update,
    non_finite,
    not_in_optimizer,
    single_class,
    softmax_missing,
    squashed_scores,
    targets_broadcast,
    twice_in_optimizer,
)

RULES: tuple[Rule, ...] = (
    no_update.RULE,
    no_gradient.RULE,
    frozen.RULE,
    not_in_optimizer.RULE,
    twice_in_optimizer.RULE,
    gradients_not_zeroed.RULE,
    learning_rate_zero.RULE,
    evaluation_mode.RULE,
    double_softmax.RULE,
    softmax_missing.RULE,
    squashed_scores.RULE,
    single_class.RULE,
    initial_loss.RULE,
    targets_broadcast.RULE,
    inputs_not_scaled.RULE,
    non_finite.RULE,
    lost_updates.RULE,
)

__all__ = ["RULES"]
