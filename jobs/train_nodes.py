"""Trains a model on the nodes of one graph: in this process if that is enough, else by Ray's workers behind partition servers.

    python jobs/train_nodes.py                                          GECO on the embedded synthetic graph
    python jobs/train_nodes.py --model primphormer --data path/or/url   a graph prepared by jobs/ingest.py
    python jobs/train_nodes.py recipe.yaml --fit.epochs 3
    ray job submit --working-dir . -- python jobs/train_nodes.py --data s3://bucket/graph

Expect a test accuracy far above the features-only baseline on the embedded graph, whose labels are noisy on purpose: see
docs/performance.md for measured figures.
"""

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.run.train import train_main


def main() -> int:
    return train_main(__doc__ or "", "nodes")


if __name__ == "__main__":
    run(main)
