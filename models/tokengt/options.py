"""TokenGT's options (arXiv:2207.02505); the network is in `graphmill.models.tokengt.network`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from graphmill.core.option_checks import Amount, Count, Positive, Share, Size, check_fields
from graphmill.models.options.features import Features, Task, check_numeric
from graphmill.models.options.local import LocalOptions, check_global, check_heads, check_joins

Identifier = Literal[
    "laplacian", "orf", "near_orf", "random", "positive", "orf_first_order", "random_first_order", "none"
]
SLOT = 512  # rows of one column in the code's feature table
SLOT_CATEGORIES = SLOT - 2  # most categories per column: the column's first two rows hold no category
INIT_STD = 0.02
NO_FEATURES = Features()


@dataclass(frozen=True)
class TokenGTConfig:
    """Every option of TokenGT; the defaults are the paper's PCQM4Mv2 model. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "edge", "out_dim", "task", "encoding", "seed")
    node: Features = NO_FEATURES
    edge: Features = NO_FEATURES
    out_dim: Count = 1
    task: Task = "graph"
    width: Count = 768
    """Channels of a token's state."""
    num_layers: Count = 12
    """Layers."""
    num_heads: Count = 32
    """Attention heads; each has width / num_heads channels."""
    ffn_width: Count | None = None
    """Inner width of the FFN; None: the width."""
    # Token identifiers.
    identifier: Identifier = "laplacian"
    """Node identifiers. random: Gaussian rows of norm 1; positive: uniform rows, which the released code calls random. near_orf, random and positive work for graphs of any size."""
    identifier_dim: Count = 16
    """P, columns of a node's identifier."""
    laplacian_ends: Literal["smallest", "both_ends"] = "smallest"
    """Use the eigenvectors of the smallest eigenvalues, or half of the smallest and half of the largest."""
    unit_identifiers: bool = False
    """With identifier laplacian: scale each node's row of entries to length 1. For all other identifiers, rows always have length 1."""
    encoding: str | None = None
    """Read the eigenvectors from graphs.encodings under this name; None: compute them."""
    type_identifier: bool = True
    """Add one learned vector to node tokens and another learned vector to edge tokens."""
    type_by_index: bool = False
    """Self-loops get the type of nodes (released code)."""
    sign_flip: bool = True
    """Flip the sign of each eigenvector at random in training."""
    eigenvector_dropout: Share = 0.2
    """Dropout on the entries of eigenvectors."""
    resample_in_eval: bool = False
    """Draw random identifiers anew in evaluation too; no: in evaluation they are a function of `seed`."""
    # Attention.
    attention: Literal["softmax", "performer"] = "softmax"
    """softmax: over all pairs of tokens; performer: FAVOR+, with a cost that is linear in the number of tokens."""
    performer_features: Count | None = None
    """R, number of random features; None: ⌊d ln d⌋ for heads of width d."""
    performer_epsilon: Amount = 0.0001
    """Constant added to FAVOR+'s features, which prevents sums of 0."""
    performer_as_released: bool = False
    """Use the released code's shifts of the exponents; they change results only because ε is not 0 (models/operators/favor.py)."""
    redraw_interval: Size = 1000
    """Training steps between two draws of Performer's projection; 0: never."""
    sparse_equivariant_basis: bool = False
    """Each layer also adds edge tokens to the tokens of their nodes (SEB)."""
    basis_reduction: Literal["sum", "mean"] = "sum"
    """How SEB reduces a node's edge tokens."""
    # Regularisation.
    attention_dropout: Share = 0.1
    """Dropout on attention weights. Softmax only, because Performer has no matrix of weights."""
    activation_dropout: Share = 0.1
    """Dropout inside the FFN."""
    dropout: Share = 0.0
    """Dropout on the embedding and on the outputs of attention and FFN."""
    drop_path: Share = 0.1
    """Stochastic depth of the last layer, drawn per graph. The probability grows linearly over the layers; the first layer has 1/L of it."""
    init_std: Positive = INIT_STD
    """Standard deviation of initial weights. The paper's 0.02 is for a width of 768; at a small width it learns slowly."""
    # Departures from the paper, all off by default.
    local: LocalOptions = LocalOptions()  # noqa: RUF009 - frozen
    scale_rows: bool = False
    """Divide each node's numeric features by the sum of their absolute values, as usual for bags of words."""
    input_dropout: Share = 0.0
    """Dropout on numeric node features; 0 in the paper."""
    seed: int = 0
    """Seed of the identifiers in evaluation and of Performer's projections."""
    # The released code's variants.
    embedding_norm: bool = False
    """Add a LayerNorm before the first layer."""
    null_token: bool = False
    """Add a token without content, like the released code's [null]."""
    head: Literal["paper", "code"] = "paper"
    """Layers of the head. paper: LN, Linear; code: Linear, GELU, LN, Linear without bias, plus one scalar."""
    feature_table: Literal["exact", "slots"] = "exact"
    """Layout of the feature table. exact: one row per category; slots: 512 rows per column, rows 0 and 1 unused."""
    dead_modules: bool = False
    """Include the code's two modules that are never called (for parameter counts and the code's checkpoints)."""

    @property
    def reads_weights(self) -> bool:
        """Whether weights of edges change the output."""
        return not self.local.is_paper

    def __post_init__(self) -> None:
        check_fields(self)
        check_heads(self)
        check_numeric(self, "input_dropout", "scale_rows")
        check_joins(self)
        if self.task == "graph":
            check_global(self, "the graph's token hears nodes in global layers alone")
        if self.encoding is not None and self.identifier != "laplacian":
            raise ValueError(
                f"encoding {self.encoding!r} names stored eigenvectors, but the identifier is {self.identifier!r}; "
                "set identifier to 'laplacian'"
            )
        if self.feature_table == "slots" and (
            self.node.dim or self.edge.dim or max(self.categories, default=0) > SLOT_CATEGORIES
        ):
            raise ValueError(
                f"feature_table 'slots' needs categories of at most {SLOT_CATEGORIES} values, got {self.node} and {self.edge}; "
                "set feature_table to 'exact'"
            )

    @property
    def categories(self) -> tuple[int, ...]:
        return self.node.categories + self.edge.categories

    @property
    def sharding(self) -> Literal["rows"] | None:
        """How several workers evaluate the model on one graph: each worker evaluates a range of the nodes, if attention is linear and a node's identifier depends on no other node."""
        own = self.identifier == "none" or (self.identifier == "laplacian" and self.encoding is not None)
        own |= self.identifier in ("near_orf", "random", "positive") and not self.resample_in_eval
        return "rows" if own and self.attention == "performer" and not self.num_special and self.edge.empty else None

    @property
    def num_special(self) -> int:
        """Number of tokens before the nodes: [graph], [null]."""
        return (self.task == "graph") + self.null_token
