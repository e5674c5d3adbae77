"""Trains GECO on a graph like ogbn-products, with partition servers and Ray's workers: the recipe is recipes/jobs/products_geco.yaml.

    python jobs/products_geco.py                              the embedded synthetic graph, about a minute on 2 cores
    python jobs/products_geco.py --data path/or/url           a graph prepared by jobs/ingest.py
    python jobs/products_geco.py --data ogbn-products         OGB's set, once its files are under data/ogb
    python jobs/products_geco.py --run.parallel graph         the whole graph as one batch, its nodes spread over the workers
    ray job submit --working-dir . -- python jobs/products_geco.py

On the embedded graph, expect a test accuracy far above the features-only baseline. The labels of this graph are noisy on purpose: docs/performance.md has
measured figures.
"""

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.run.train import train_main


def main() -> int:
    return train_main(__doc__ or "", recipe="jobs/products_geco.yaml")


if __name__ == "__main__":
    run(main)
