"""CP612: samples of a batch that have a part in each other's losses."""

from __future__ import annotations

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign

SHARE = 1e-6
"""Of the gradient of two samples' losses that goes to other samples: more than rounding. Without a leak it is 0."""


def check(run: Record) -> Sign | NotKnown | None:
    """Look for the last place in the forward pass before which samples meet."""
    shares = run.curves("Wiring", "coupling/share")
    if not shares:
        return NotKnown("it takes individual_losses of four samples or more, in their graph")
    names = list(shares)
    meeting = [name for name, curve in shares.items() if curve.values[0] > SHARE]
    if not meeting:
        return None
    last = meeting[-1]
    after = names[names.index(last) + 1 :]
    if not after:
        return NotKnown(
            "the losses themselves compare samples, as contrastive ones do; what lies before cannot be told"
        )
    if after[0] in run.curves("Wiring", "coupling/by_design"):
        return NotKnown(
            f"{after[0]} normalises with the statistics of the batch, which couples the samples; what "
            "lies before it cannot be told"
        )
    evidence = {
        "share of two losses' gradient that goes to other samples": float(shares[last].values[0]),
        "between the outputs of": [last, after[0]],
    }
    return Sign(int(shares[last].steps[0]), (after[0], last), evidence, 0.95)


RULE = Rule(
    code="CP612",
    name="leaking-between-samples",
    severity="error",
    title="The loss of a sample depends on other samples of its batch",
    why="What the model learns rests on what happens to be in the batch, which is not there when it is used "
    "on one sample; and what belongs to one sample may have been mixed up with others.",
    action="Look at the named place for a mean, a sum, a softmax or a sort over dimension 0, and for a reshape, "
    "view or transpose that takes the dimension of the samples for another one.",
    source='Karpathy (2019), "A Recipe for Training Neural Networks": use backprop to chart dependencies',
    needs=("Wiring",),
    check=check,
)
