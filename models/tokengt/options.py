"""TokenGT's options (arXiv:2207.02505); the network is in `graphmill.models.tokengt.network`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from graphmill.core.option_checks import Amount, Count, Positive, Share, Size, check_fields
from graphmill.models.options.features import Features, Task, check_numeric
from graphmill.models.options.local import LocalOptions, check_global, check_heads, check_joins

Identifier = Literal["laplacian", "orf", "near_orf", "random", "positive", "orf_first_order", "none"]
SLOT = 512  # rows per column of the code's feature table
SLOT_CATEGORIES = SLOT - 2  # that have a row in the last column too
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
    """None: the width."""
    # Token identifiers.
    identifier: Identifier = "laplacian"
    """Node identifiers. random: Gaussian rows of norm 1; positive: uniform ones, which the released code calls random. near_orf, random and positive serve graphs of any size."""
    identifier_dim: Count = 16
    """P, columns of a node's identifier."""
    laplacian_ends: Literal["smallest", "both_ends"] = "smallest"
    """Eigenvectors of the smallest eigenvalues, or half of them of the largest."""
    unit_identifiers: bool = False
    """laplacian: scale each node's row of entries to length 1; rows of the other identifiers have it anyway."""
    encoding: str | None = None
    """Take the eigenvectors from graphs.encodings under this name; None: compute them."""
    type_identifier: bool = True
    """Tell tokens of nodes from tokens of edges by a learned vector each."""
    type_by_index: bool = False
    """An edge from a node to itself has the nodes' type (released code)."""
    sign_flip: bool = True
    """Flip the sign of each eigenvector at random in training."""
    eigenvector_dropout: Share = 0.2
    """Dropout on the entries of eigenvectors."""
    resample_in_eval: bool = False
    """Draw random identifiers anew in evaluation too; no: there they follow from `seed`."""
    # Attention.
    attention: Literal["softmax", "performer"] = "softmax"
    """All pairs of tokens, or FAVOR+, which is linear in them."""
    performer_features: Count | None = None
    """R; None: ⌊d ln d⌋ for heads of width d."""
    performer_epsilon: Amount = 0.0001
    """Added to FAVOR+'s features, which keeps sums from 0."""
    performer_as_released: bool = False
    """The released code's shifts of the exponents, which ε makes matter (models/operators/favor.py)."""
    redraw_interval: Size = 1000
    """Training steps between two draws of Performer's projection; 0: never."""
    sparse_equivariant_basis: bool = False
    """Each layer also adds its edge tokens to their nodes (SEB)."""
    basis_reduction: Literal["sum", "mean"] = "sum"
    """How SEB reduces a node's edge tokens."""
    # Regularisation.
    attention_dropout: Share = 0.1
    """Softmax only: Performer has no matrix to drop entries of."""
    activation_dropout: Share = 0.1
    """Inside the FFN."""
    dropout: Share = 0.0
    """On the embedding and on the outputs of attention and FFN."""
    drop_path: Share = 0.1
    """Stochastic depth of the last layer, linear from 1/L of it in the first; drawn per graph."""
    init_std: Positive = INIT_STD
    """Standard deviation of initial weights; the paper's 0.02 is for a width of 768 and slow at a small one."""
    # Departures from the paper, all off.
    local: LocalOptions = LocalOptions()  # noqa: RUF009 - frozen
    scale_rows: bool = False
    """Each node's numeric features divided by the sum of their absolute values, as for bags of words."""
    input_dropout: Share = 0.0
    """On numeric node features; 0 in the paper."""
    seed: int = 0
    """Seed of the identifiers in evaluation and of Performer's projections."""
    # The released code's variants.
    embedding_norm: bool = False
    """LayerNorm before the first layer."""
    null_token: bool = False
    """A further token without content, as the released code's [null]."""
    head: Literal["paper", "code"] = "paper"
    """paper: LN, Linear; code: Linear, GELU, LN, Linear without bias, plus one scalar."""
    feature_table: Literal["exact", "slots"] = "exact"
    """exact: one row per category; slots: 512 rows per column, rows 0 and 1 unused."""
    dead_modules: bool = False
    """Hold the code's two modules that are never called (parameter counts, its checkpoints)."""

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
        """How several workers evaluate it on one graph: each a range of the nodes, if attention is linear and a node's identifier depends on no other node."""
        own = self.identifier == "none" or (self.identifier == "laplacian" and self.encoding is not None)
        own |= self.identifier in ("near_orf", "random", "positive") and not self.resample_in_eval
        return "rows" if own and self.attention == "performer" and not self.num_special and self.edge.empty else None

    @property
    def num_special(self) -> int:
        """Tokens in front of the nodes: [graph], [null]."""
        return (self.task == "graph") + self.null_token
