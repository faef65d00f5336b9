"""CP302: a negative log-likelihood of what is no logarithm of probabilities."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS
from cockpit.doctor.rules.of_loss import above, fact

TITLES = {
    "of_scores": "The loss takes log-probabilities, and gets scores: softmax and log are missing",
    "of_probabilities": "The loss takes log-probabilities, and gets probabilities: the log is missing",
}

FAR = 0.1
"""Logarithm of a sum of probabilities, which is 0; half precision gets it right to 0.01."""


def check(run: Record) -> Sign | None:
    """Look for a likelihood of scores or probabilities, or of anything else that does not sum to 1."""
    for kind, title in TITLES.items():
        step = fact(run, kind)
        if step is not None:
            return Sign(step, (), {"input of the loss": kind.removeprefix("of_")}, 0.95, title)
    off = above(run, "off_one", FAR)
    if off is None:
        return None
    evidence = {"logarithm of the sum of what should be probabilities, off 0 by": off[1]}
    title = "The loss takes log-probabilities, and gets numbers whose exponentials do not sum to 1 over the classes"
    return Sign(off[0], (), evidence, 0.95, title)


RULE = Rule(
    code="CP302",
    name="softmax-missing",
    severity="error",
    title="The loss takes log-probabilities, and gets something else",
    why="The negative log-likelihood only picks the entry of the target. Without log-probabilities nothing "
    "pushes the others down, and with scores the loss falls without end.",
    action="Use torch.nn.functional.cross_entropy on the scores, or log_softmax before nll_loss, over the dimension of "
    "the classes: dim=1 of [N, C, ...].",
    source="PyTorch documentation of NLLLoss",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "non-finite", "dead-units", "exploding-gradients"),
)
