"""Writes docs/coverage.md: which quantity is exact on which model, as the tests find it.

Run as ``make coverage-table``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from models.study import ROWS
from models.verdict import APPROXIMATE, EXACT, PARTIAL, REFUSED, WRONG, Cell, cells
from models.zoo import ZOO

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"

SYMBOLS = {EXACT: "✓", APPROXIMATE: "≈", PARTIAL: "◐", REFUSED: "–", WRONG: "✗"}

MEANINGS = {
    EXACT: "equal to brute force: individual losses backpropagated one at a time, double backward passes",
    APPROXIMATE: "compared with brute force in the sense that the note says",
    PARTIAL: "equal to brute force, without the parameters that the note names",
    REFUSED: "no value, for the reason that the note gives and the run file keeps; nothing is guessed",
    WRONG: "wrong",
}

HEAD = """\
# Which quantity works on which model

Written by `make coverage-table` from what `tests/models` finds, and compared with it by the tests: every model is
trained for two or three steps of AdamW with all quantities tracked, and each value is compared with one computed by
brute force: to 1e-6 of itself (1e-5 for eigenvalues, 1e-4 where the model computes its loss in single precision).
The models are classes of torchvision and transformers, and modules of PyTorch, as they are, in small sizes with random
weights, in float64, in evaluation mode unless the column says *training* or *dropout*.

"""

COLUMNS = {
    "MLP": "`nn.Sequential` of linear layers",
    "3c3d": "three convolutions, three linear layers",
    "BatchNorm, training": (
        "convolutions with `nn.BatchNorm2d`, whose samples are coupled: individual gradients are the samples' shares"
    ),
    "BatchNorm, evaluation": "the same with running statistics",
    "ResNet": "`transformers.ResNetForImageClassification` of basic blocks",
    "MobileNetV3, training": "`torchvision.models.mobilenet_v3_small`, with batch statistics and dropout",
    "MobileNetV3": "the same in evaluation mode",
    "ConvNeXt": "`torchvision.models.ConvNeXt`",
    "VisionTransformer": "`torchvision.models.VisionTransformer`",
    "ViT": "`transformers.ViTForImageClassification`",
    "BERT": "`transformers.BertForMaskedLM`, with padding and some tokens labelled",
    "T5": "`transformers.T5ForConditionalGeneration`",
    "GPT-2": '`transformers.GPT2LMHeadModel`, `attn_implementation="eager"`',
    "GPT-2, dropout": "the same in training mode, with the default attention",
    "Llama": "`transformers.LlamaForCausalLM`",
    "LSTM": "embedding, two layers of `nn.LSTM` with time first, linear head on all positions at once",
    "LSTM, tied": "the same with one matrix as embedding and head",
    "Nested": (
        "containers in containers, bare parameters, inputs in a dict, outputs in a tuple, a module called twice"
    ),
}
"""What the columns are."""

FOOT = """
The losses of models of transformers are those that the models compute from `labels`. `individual_losses`, a `closure`
and the optimizer are given everywhere. Histograms count every value (`samples=None`); with the default settings they
draw 65536 of more.

ResNet-18, ConvNeXt-tiny and MobileNetV3-small of torchvision are compared in full size and float32, too: the
individual gradients of every parameter, and the tests that are made of them.
"""


def render(table: Mapping[str, Mapping[str, Cell]]) -> str:
    """Return the page.

    Args:
        table: Cells by model and row.
    """
    notes: dict[str, int] = {}
    lines = []
    for row in ROWS:
        of_row = [_shown(column[row], notes) for column in table.values()]
        lines.append(f"| {row} | " + " | ".join(of_row) + " |")
    numbers = [f"| | {' | '.join(table)} |", "|---" + "|:-:" * len(table) + "|"]
    found = {cell.outcome for column in table.values() for cell in column.values()}
    legend = [f"- {SYMBOLS[o]} {meaning}" for o, meaning in MEANINGS.items() if o in found]
    models = [f"- **{name}**: {COLUMNS[name]}" for name in table]
    footnotes = [f"{number}. {text}" for text, number in notes.items()]
    parts = [legend, [*numbers, *lines], ["## Notes", "", *footnotes], ["## Models", "", *models]]
    return HEAD + "\n\n".join("\n".join(part) for part in parts) + "\n" + FOOT


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    if not cell.note or cell.outcome == WRONG:  # what is wrong, the tests say
        return SYMBOLS[cell.outcome]
    # Values would differ from machine to machine.
    note = re.sub(
        r"between [\d.e+-]+ and [\d.e+-]+ times", "between so and so many times", cell.note
    )
    number = notes.setdefault(note, len(notes) + 1)
    return f"{SYMBOLS[cell.outcome]}<sup>{number}</sup>"


def page() -> str:
    """Return the page as the models have it now."""
    return render({name: cells(name) for name in ZOO})


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests
    PAGE.write_text(page(), encoding="utf-8")
