"""Trains a model to predict which nodes of a graph are joined: it learns from the edges and is scored on links that were held out at ingestion.

    python jobs/train_links.py                                            GECO on the embedded synthetic graph
    python jobs/ingest.py edges.csv graphs/mine --edge-list.features x.npy --links.valid 0.05 --links.test 0.1
    python jobs/train_links.py --data graphs/mine --model sage            your own edges: docs/guides/links.md
    python jobs/train_links.py --data graphs/mine --task.decoder dot --task.loss softmax --task.num_negatives 10

The command is jobs/train_nodes.py with `--task links` and the recipe recipes/jobs/train_links.yaml. Expect a mean reciprocal rank well above that of the
baseline, which counts common neighbors. docs/performance.md has measured figures.
"""

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.run.train import train_main


def main() -> int:
    return train_main(__doc__ or "", recipe="jobs/train_links.yaml")


if __name__ == "__main__":
    run(main)
