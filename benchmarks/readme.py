"""Write the README's tables of costs and of the doctor's rates from the results: ``python -m benchmarks.readme``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import ECONOMY, EXACT, IDLE, SELDOM
from benchmarks.rows import TIME

README = Path(__file__).parents[1] / "README.md"
RESULTS = Path(__file__).parent / "results" / "full.json"
FAULTS = RESULTS.with_name("faults.json")
BEGIN, END = "<!-- cost: begin -->", "<!-- cost: end -->"
RATES_BEGIN, RATES_END = "<!-- rates: begin -->", "<!-- rates: end -->"
UNMEASURED = "Nothing is claimed before it is measured: `make faults` measures it, and writes the table here."
HELD_OUT, DOCTOR = "held-out", "doctor"
NETWORKS = {
    "mlp": "MLP 784-1000-500-100-10",
    "3c3d": "3c3d, a small convolutional network",
    "transformer": "GPT-2, 4 layers of width 128",
}
COLUMNS = (ECONOMY, "business", "full", SELDOM, IDLE)
HEAD = ("", ECONOMY, "business", "full", "economy, every 10th step", "nothing due")


def table(results: dict[str, Any]) -> str:
    """Return the table of costs and what is to be known of it."""
    lines = [HEAD, ("---", *["---:"] * len(COLUMNS))]
    for name, title in NETWORKS.items():
        of = rows_of(results, name)
        lines.append((title, *(times(of[column]["ratio"]["median"]) for column in COLUMNS)))
        if any(of[column]["earlier"] for column in COLUMNS):
            earlier = [of[column]["earlier"] for column in COLUMNS]
            lines.append(("Cockpit 1.0.2", *(f"{e:g} ×" if e else "" for e in earlier)))
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{rows}\n\n{explanation(results)}"


def times(ratio: float) -> str:
    """Return a multiple, with as many digits as it is good for."""
    return f"{ratio:.3f} ×" if ratio < 1.2 else f"{ratio:.1f} ×"


def explanation(results: dict[str, Any]) -> str:
    """Return what the figures of the table are."""
    machine = results["machine"]
    sizes = {name: results["sections"][name]["batch_size"] for name in NETWORKS}
    batches = ", ".join(f"{size} ({NETWORKS[name].split(',')[0]})" for name, size in sizes.items())
    exact = [rows_of(results, name)[EXACT]["nanoseconds"] for name in NETWORKS]
    words = (
        "Time of a training step as a multiple of the same step without a cockpit; every step is "
        f"tracked, unless a column says otherwise. Batches of {batches}; medians of interleaved repeats "
        f"on {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}. The figures "
        "of Cockpit 1.0.2 are those of its networks with BackPACK 1.7.1, on two threads as well. "
        "Histograms that count every value, `GradHist1d(samples=None)`, take "
        f"{min(exact):.0f} to {max(exact):.0f} ns for an element of an individual gradient more. "
        f"{aims(results)} "
        "`make bench` measures all of this; [its whole output](benchmarks/results/full.md) has lower "
        "bounds, memory, growth with the sizes, and where the time goes."
    )
    return wrapped(words)


def aims(results: dict[str, Any]) -> str:
    """Return which aims the figures miss."""
    missed = [
        f"{NETWORKS[name].split(',')[0]}, {column} ({aim['limit']:g} ×)"
        for name in NETWORKS
        for column in COLUMNS
        for aim in rows_of(results, name)[column]["aims"]
        if aim["what"] == TIME and aim["value"] > aim["limit"]
    ]
    return f"Aims that are missed: {'; '.join(missed)}." if missed else "All aims of time are met."


def wrapped(words: str, width: int = 118) -> str:
    """Return a paragraph in lines of a width."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def rows_of(results: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a network's table by what is tracked."""
    return {row["tracked"]: row for row in results["sections"][name]["rows"]}


def updated(readme: str, results: dict[str, Any]) -> str:
    """Return the README with the table of these results.

    Raises:
        ValueError: if the place of the table is not marked once, or the results are those of a first
            look.
    """
    if results.get("quick"):
        raise ValueError("The results are those of --quick, whose batches are too small.")
    return between(readme, BEGIN, END, table(results))


def between(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with a text between two lines of it.

    Raises:
        ValueError: if the place of the text is not marked once.
    """
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"The page must have the lines {begin} and {end} once each.")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def rates(faults: dict[str, Any] | None) -> str:
    """Return the table of how often the doctor is right, and rule sets that others publish."""
    if faults is None:
        return UNMEASURED
    half = faults["halves"][HELD_OUT]["overall"]
    rows = [
        "| | detected | cause first | among 3 | healthy with alarm |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for sayer, score in half.items():
        shares = (
            *(score[key] for key in ("detection", "top_1", "top_3")),
            score["healthy"]["alarmed"],
        )
        name = "**cockpit doctor**" if sayer == DOCTOR else sayer
        rows.append(f"| {name} | {' | '.join(f'{share:.0%}' for share in shares)} |")
    of_doctor = half[DOCTOR]
    words = (
        f"Of {of_doctor['runs']} trainings with one known fault each and {of_doctor['healthy']['runs']} healthy "
        "ones that the rules were not tuned on; beside it, rule sets that others publish, on the same runs. "
        "[What is trained, and the rates by kind of fault](docs/fault-benchmark.md)."
    )
    return "\n".join(rows) + f"\n\n{wrapped(words)}"


def main(arguments: Sequence[str]) -> int:
    """Write the table, or with ``--check`` say whether it is that of the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.readme",
        description="Write the README's table of costs from benchmarks/results/full.json.",
    )
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args(arguments)
    try:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        readme = README.read_text(encoding="utf-8")
        faults = json.loads(FAULTS.read_text(encoding="utf-8")) if FAULTS.exists() else None
        new = between(updated(readme, results), RATES_BEGIN, RATES_END, rates(faults))
    except FileNotFoundError as error:
        print(f"{error.filename} is missing. Run python -m benchmarks first.", file=sys.stderr)
        return 2
    except (KeyError, ValueError) as error:
        print(f"No table can be made: {error!r}. Run python -m benchmarks again.", file=sys.stderr)
        return 2
    if options.check:
        print("up to date" if new == readme else "out of date: run python -m benchmarks.readme")
        return int(new != readme)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
