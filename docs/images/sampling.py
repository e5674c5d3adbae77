"""Draws docs/images/sampling.svg from docs/performance/data/sampling.csv: run B, two threads, by the clock, rows included."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

PROGRAMS = {"Graphmill": "Graphmill, with rows", "DGL 1.1": "DGL NeighborSampler", "PyG 2.8": "PyG NeighborLoader"}


def main() -> None:
    folder = Path(__file__).parent
    with open(folder.parent / "performance" / "data" / "sampling.csv") as file:
        rows = [row for row in csv.DictReader(file) if (row["run"], row["threads"]) == ("B", "2")]
    rate_of = {row["program"]: float(row["million_edges_per_s"]) for row in rows}
    rates = {name: rate_of[program] for name, program in PROGRAMS.items()}
    plt.rcParams.update({"svg.hashsalt": "graphmill", "font.family": "DejaVu Sans", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(7.2, 1.7))
    bars = axes.barh(list(rates), list(rates.values()), color=["#0b66c3", "#9aa5b1", "#9aa5b1"], height=0.62)
    axes.bar_label(bars, [f"{rate:g}" for rate in rates.values()], padding=5)
    axes.set_title("Neighbor sampling with rows, million edges a second (2.4M nodes, 122M edges, 2 cores)", fontsize=9)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.savefig(folder / "sampling.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
