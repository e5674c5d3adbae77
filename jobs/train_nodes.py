"""Trains a model on the nodes of one graph: in one process if it is enough, otherwise by workers of Ray that read from partition servers.

    python jobs/train_nodes.py                                          GECO on the embedded synthetic graph
    python jobs/train_nodes.py --model primphormer --data path/or/url   a graph prepared by jobs/ingest.py
    python jobs/train_nodes.py recipe.yaml --fit.epochs 3
    ray job submit --working-dir . -- python jobs/train_nodes.py --data s3://bucket/graph

On the embedded graph, expect a test accuracy far above the features-only baseline. The labels of this graph are noisy on purpose: docs/performance.md has
measured figures.
"""

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.run.train import train_main


def main() -> int:
    return train_main(__doc__ or "", "nodes")


if __name__ == "__main__":
    run(main)
