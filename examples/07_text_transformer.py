"""A transformer on text.

Does every part of the transformer learn, and do its heads begin to choose?

Run it with ``python examples/07_text_transformer.py`` in a clone. A transformer of two blocks learns
to continue *Moby-Dick*, character by character. It takes less than a minute, and writes
``runs/text_transformer.db`` and a picture beside it; ``--help`` lists the options.
"""

import argparse
import gzip
from pathlib import Path

import torch
from torch import Tensor, nn

from cockpit import Cockpit, CockpitPlotter, open_run
from cockpit.quantities import AttentionStats, Loss, NormTest, UpdateRatio
from cockpit.schedules import linear

CONTEXT, WIDTH, HEADS, BATCH_SIZE = 32, 64, 4, 16
TEXT = Path(__file__).parents[1] / "benchmarks" / "faults" / "data" / "moby_dick.txt.gz"


class Block(nn.Module):
    """Attention to what came before, and two linear layers, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block makes of x, `[N, CONTEXT, WIDTH]`."""
        later = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=later, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A small transformer for characters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next characters, `[N, CONTEXT, characters]`."""
        return self.head(self.blocks(self.embedding(ids) + self.positions))


parser = argparse.ArgumentParser(description="A transformer on text.")
parser.add_argument("--steps", type=int, default=200, help="of training (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
options = parser.parse_args()
path = options.out / "text_transformer.db"

print("Does every part of the transformer learn, and do its heads begin to choose?")
text = gzip.decompress(TEXT.read_bytes()).decode("utf-8")
alphabet = sorted(set(text))
known = {character: place for place, character in enumerate(alphabet)}
ids = torch.tensor([known[character] for character in text])

torch.manual_seed(0)
torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
model = Transformer(len(alphabet))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
every = linear(5)  # every fifth step
quantities = [Loss(), NormTest(every), UpdateRatio(every), AttentionStats(every)]
with Cockpit(model, quantities, optimizer=optimizer, log=path) as watch:
    for step in range(options.steps):
        starts = torch.randint(len(ids) - CONTEXT, (BATCH_SIZE, 1))
        pieces = ids[starts + torch.arange(CONTEXT + 1)]  # [N, CONTEXT + 1]
        optimizer.zero_grad()
        logits = model(pieces[:, :-1])
        each = nn.functional.cross_entropy(logits.mT, pieces[:, 1:], reduction="none")
        losses = each.mean(1)  # [N], of whole pieces: these are the samples
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
        if step % max(1, options.steps // 4) == 0:
            print(f"  step {step}: loss {loss.item():.2f}", flush=True)

run = open_run(path)
loss = run.series("Loss")
print(f"{len(loss)} steps, loss {loss.iloc[0]:.2f} -> {loss.tail(10).mean():.2f}.")

frame = run.scalars("UpdateRatio")
frame = frame[frame["part"].str.endswith(("weight", "positions"))]
ratios = frame.groupby("part")["value"].median().sort_values()
print(
    f"Median of update / parameters: from {ratios.iloc[0]:.4f} ({ratios.index[0]}) to "
    f"{ratios.iloc[-1]:.4f} ({ratios.index[-1]}):",
    "every part learns." if ratios.iloc[0] > 1e-4 else "not every part learns.",
)

frame = run.scalars("AttentionStats")
spread = frame[frame["part"].str.startswith("spread")].groupby("step")["value"].mean()
before, after = spread.iloc[0], spread.iloc[-1]
print(
    f"Spread of the attention (1: over all characters before): {before:.2f} -> {after:.2f}:",
    "heads begin to choose." if after < before - 0.01 else "heads do not choose yet.",
)

CockpitPlotter().plot(run, show_plot=False, save_plot=True, savename="text_transformer")
print(f"Pictures: {path.with_suffix('.png')}")
