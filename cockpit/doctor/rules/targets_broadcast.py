"""CP306: every output is compared with the targets of all samples."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import Rule, Sign
from cockpit.doctor.rules.of_course import SYMPTOMS
from cockpit.doctor.rules.of_loss import fact


def check(run: Record) -> Sign | None:
    """Look for outputs that were broadcast against the targets."""
    step = fact(run, "broadcast")
    return None if step is None else Sign(step, (), {"shape of the comparison": "[N, N]"}, 0.95)


RULE = Rule(
    code="CP306",
    name="targets-broadcast",
    severity="error",
    title="Every output is compared with the targets of all samples",
    why="Outputs [N, 1] and targets [N], or the reverse, are broadcast to [N, N]: the best that the model "
    "can do is to predict the mean of all targets.",
    action="Give both the same shape: outputs.squeeze(1), or targets.unsqueeze(1).",
    source="PyTorch documentation of broadcasting and of MSELoss",
    needs=("Wiring",),
    check=check,
    explains=(*SYMPTOMS, "dead-units", "batch-needlessly-large"),
)
