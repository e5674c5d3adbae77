"""Trains a model on many graphs: TokenGT, GRIT, PPGT, GECO or Primphormer, in this process if that is enough, else by Ray's workers.

    python jobs/train_graphs.py                                           TokenGT on embedded molecules
    python jobs/train_graphs.py --model grit --data runs/qm9              a set prepared by jobs/ingest.py
    python jobs/train_graphs.py --data molecules.csv --task.target gap    a table of SMILES and numbers
    python jobs/train_graphs.py --data runs/hiv --task binary             yes-or-no targets: ROC-AUC

The embedded default needs `pip install -e '.[molecules]'` and no file: molecules enumerated by rule, whose target is RDKit's logP.
Expect minutes on 2 cores and a test MAE near 0.3 (12 epochs, 2 of warm-up, gave 0.308); the mean has 1.10, the counts of atoms 0.33.
"""

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.run.train import train_main


def main() -> int:
    return train_main(__doc__ or "", "graphs")


if __name__ == "__main__":
    run(main)
