"""Trains TokenGT on molecules with Ray's workers: the recipe is recipes/jobs/pcqm4m_tokengt.yaml.

    python jobs/pcqm4m_tokengt.py                                           embedded molecules
    python jobs/pcqm4m_tokengt.py --data molecules.csv --task.target gap    a table of SMILES and numbers
    ray job submit --working-dir . -- python jobs/pcqm4m_tokengt.py

PCQM4Mv2 itself: `graphmill ingest pcqm4mv2 graphs/pcqm4mv2 --root data/ogb`, then
`graphmill train_graphs recipes/tokengt/pcqm4mv2_lap.yaml --data graphs/pcqm4mv2`.
"""

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.run.train import train_main


def main() -> int:
    return train_main(__doc__ or "", "graphs", recipe="jobs/pcqm4m_tokengt.yaml")


if __name__ == "__main__":
    run(main)
