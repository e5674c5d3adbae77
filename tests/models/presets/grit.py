"""GRIT's published models (arXiv:2305.17589), of data sets that have no recipe too."""

from functools import partial

from graphmill.models.options.features import Features, atoms, bonds
from graphmill.models.options.grit import GRITConfig

# OGB's atom columns with four kinds of chirality, as OGB 1.3.3 and the peptides data sets have them (`atoms()` has five).
ATOMS_FOUR_CHIRALITIES = Features(categories=(119, 4, 12, 12, 10, 6, 6, 2, 2))

# Below, "32, 1e-3, 2000 + 50, 1e-5" is the published training: batch, learning rate, epochs and those of warm-up, weight decay. AdamW,
# gradient norm 1, cosine (PCQM4Mv2: linear) after the warm-up, at least 1e-6.

zinc = partial(GRITConfig, node=Features(categories=(21,)), edge=Features(categories=(4,)))
"""ZINC (473,473 parameters): 21 atom types, 4 bond types. MAE .059. 32, 1e-3, 2000 + 50, 1e-5."""

zinc_full = partial(zinc, node=Features(categories=(28,)))
"""ZINC-full, whose file has 28 atom types: 473,921 parameters. MAE .023. 256, 1e-3, 2000 + 50, 1e-5."""

_superpixels = partial(
    GRITConfig,
    edge=Features(dim=1),
    out_dim=10,
    width=52,
    num_layers=3,
    num_heads=4,
    rrwp_steps=18,
    attention_dropout=0.5,
    pool="mean",
    head="graphgym",
)

mnist = partial(_superpixels, node=Features(dim=3), head_layers=3)
"""MNIST superpixels (102,138): intensity and position, edges with a distance. 16, 1e-3, 200 + 5, 1e-5."""

cifar10 = partial(_superpixels, node=Features(dim=5), head_layers=2)
"""CIFAR10 superpixels (99,486): colour and position, edges with a distance. 16, 1e-3, 200 + 5, 1e-5."""

_blocks = partial(GRITConfig, edge=Features(categories=(1,)), task="node", head="graphgym")

pattern = partial(_blocks, node=Features(dim=3))
"""SBM PATTERN (477,953): three one-hot node features, edges without features, one logit per node. 32, 5e-4, 100 + 5, 1e-5."""

cluster = partial(
    _blocks,
    node=Features(dim=7),
    out_dim=6,
    width=48,
    num_layers=16,
    rrwp_steps=32,
    dropout=0.01,
    attention_dropout=0.5,
)
"""SBM CLUSTER: seven one-hot node features, six classes. 431,670 parameters here; the paper says 432,206. 16, 5e-4, 100 + 5, 1e-5."""

_peptides = partial(
    GRITConfig,
    node=ATOMS_FOUR_CHIRALITIES,
    edge=bonds(),
    width=96,
    num_layers=4,
    attention_dropout=0.5,
    pool="mean",
    head="graphgym",
    head_layers=1,
)

peptides_func = partial(_peptides, num_heads=4, rrwp_steps=17, out_dim=10)
"""Peptides-func (443,338): ten labels. Pass `node=atoms()` for features of OGB 1.3.6. 32, 3e-4, 200 + 5, 0."""

peptides_struct = partial(_peptides, num_heads=8, rrwp_steps=24, out_dim=11)
"""Peptides-struct: eleven targets. 440,171 parameters; the paper's 438,827 is exactly that of `rrwp_steps=17`. 32, 3e-4, 200 + 5, 0."""

small = partial(GRITConfig, node=atoms(), edge=bonds())
"""ZINC's sizes for molecules with OGB's features (483,841 parameters with one output): QM9, molhiv."""

pcqm4mv2 = partial(
    small,
    width=256,
    num_layers=16,
    rrwp_steps=16,
    dropout=0.1,
    attention_dropout=0.1,
    pool="mean",
    activation="gelu",
)
"""PCQM4Mv2: 11.8M parameters by these sizes, where the paper prints 15.3M and 16.6M. 256, 2e-4, 150 + 10, 0."""
