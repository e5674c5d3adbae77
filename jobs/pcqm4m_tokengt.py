"""Molecules: TokenGT, GRIT, PPGT, GECO or Primphormer on a set of many graphs, trained by DDP workers.

    python jobs/pcqm4m_tokengt.py                                       TokenGT on embedded molecules
    python jobs/pcqm4m_tokengt.py --model grit --data runs/qm9          a set prepared by jobs/ingest_molecules.py
    python jobs/pcqm4m_tokengt.py --data molecules.csv --target gap     a table of SMILES and numbers
    python jobs/pcqm4m_tokengt.py --data hiv --task binary              yes-or-no targets: ROC-AUC
    ray job submit --working-dir . -- python jobs/pcqm4m_tokengt.py

The embedded default needs `pip install -e '.[molecules]'` and no file: molecules enumerated by rule, whose target is RDKit's logP.
Expect minutes on 2 cores and a test MAE near 0.3, of which 1.10 is the mean's and 0.33 that of the atoms' counts: 12 epochs gave 0.308.

PCQM4Mv2 itself: `python jobs/ingest_molecules.py pcqm4mv2 graphs/pcqm4mv2 --root data/ogb`, then `--data graphs/pcqm4mv2
--preset pcqm4mv2_lap --batch-size 512 --epochs 303 --schedule poly --warmup-steps 60000 --clip-norm 5 --weight-decay 0.1
--learning-rate 2e-4`: with two workers the published million steps of 1,024 molecules. Not run to its end by this project, which had no GPU for it.
"""

import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jobs.run.command_line import parse
from jobs.run.exit_codes import run
from jobs.run.graph_options import GraphJobOptions
from jobs.run.resume import config_defaults
from jobs.run.run_models import GraphModel


@dataclass(frozen=True)
class ModelOptions:
    """The model. What is not set is as the preset has it."""

    model: Literal["tokengt", "grit", "ppgt", "geco", "primphormer"] = "tokengt"
    """Which of the five."""

    preset: str = "small"
    """A preset of the model's module (models/<model>.py): small has about 0.5M parameters."""

    width: int | None = None
    """Channels."""

    num_layers: int | None = None
    """Layers."""

    num_heads: int | None = None
    """Attention heads."""

    dropout: float | None = None
    """Dropout."""

    attention_dropout: float | None = None
    """Dropout of attention weights."""

    drop_path: float | None = None
    """Stochastic depth."""

    pool: Literal["sum", "mean", "max"] | None = None
    """How node states become a graph's."""

    identifier: Literal["laplacian", "orf", "near_orf", "none"] | None = None
    """tokengt: who a node is."""

    identifier_dim: int | None = None
    """tokengt: width of the identifiers."""

    attention: Literal["softmax", "performer"] | None = None
    """tokengt: quadratic or linear in the tokens."""

    eta: float | None = None
    """primphormer: weight of the KSVD loss."""


@dataclass(frozen=True)
class Config(GraphJobOptions):
    """A model of molecules."""

    model: ModelOptions = field(default_factory=ModelOptions)


def changes(options: ModelOptions) -> dict[str, Any]:
    """The fields of the preset that the options replace."""
    values = asdict(options)
    return {name: value for name, value in values.items() if name not in ("model", "preset") and value is not None}


def graph_model(config: Config) -> GraphModel:
    """What is trained, and what predicts afterwards."""
    from jobs.run.graph_models import build_config, build_network

    options = config.model

    def model_config(manifest: Any, out_dim: int) -> Any:
        return build_config(options.model, options.preset, changes(options), manifest, out_dim)

    return GraphModel(
        build=lambda manifest, out_dim: build_network(options.model, model_config(manifest, out_dim)),
        config=lambda manifest, out_dim: {"model": options.model, **asdict(model_config(manifest, out_dim))},
    )


def main() -> int:
    config = parse(Config, default=config_defaults(Config, sys.argv[1:]), prefixes=False)
    from jobs.run.graph_job import run_graph_job
    from jobs.run.graph_models import MODELS, check_options
    from jobs.run.prepare_molecules import prepare_molecules

    if config.batch.bucket_ratio is None:
        config = replace(config, batch=replace(config.batch, bucket_ratio=MODELS[config.model.model].bucket_ratio))
    check_options(config.model.model, config.model.preset, changes(config.model))
    model = graph_model(config)
    return run_graph_job(
        job=f"{Path(__file__).stem.partition('_')[0]}-{config.model.model}",
        options=config,
        config=asdict(config),
        prepare=prepare_molecules,
        build_model=model.build,
        model_config=model.config,
    )


if __name__ == "__main__":
    run(main)
