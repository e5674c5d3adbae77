"""Primphormer's options (ICML 2025); the network is in `graphmill.models.primphormer.network`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from graphmill.core.option_checks import Amount, Count, Share, check_fields
from graphmill.models.gps.options import HybridConfig
from graphmill.models.options.local import check_heads
from graphmill.models.options.sparse import SparseOptions


@dataclass(frozen=True)
class PrimalOptions:
    """Options of one primal attention; raises ValueError on values that cannot work."""

    num_virtual: Count = 30
    """N_s, virtual nodes."""
    num_scores: Count | None = None
    """s; None: N_s, as in all published rows."""
    pool: Literal["mean", "sum"] = "mean"
    """X̄: the mean or the sum over a graph's nodes."""
    virtual_nodes: Literal["per_layer", "running", "none"] = "per_layer"
    """per_layer: each layer has its F; running: f_X is a state that is passed from layer to layer; none: f_X = F, the paper's ablation."""
    heads: Literal["own", "shared"] = "own"
    """own: each head has its W_c, all heads share Λ, V has no bias. shared (Appendix D): all heads share W_c, each head has its Λ, V has a bias, and W_e and W_r are orthogonal over all heads. With virtual_nodes running, shared gives the published parameter counts."""
    score_terms: Literal["mean", "sum", "batch"] = "mean"
    """Reduction of J over nodes, and of J's trace over heads. batch: over all nodes of a batch at once, as in Appendix D's pseudo-code, not per graph."""
    multiplier: Literal["square", "softplus", "plain"] = "square"
    """Form of the effective Λ; plain may become negative."""
    dropout: Share = 0.0
    """Dropout on the scores [e; r]; the paper does not specify the position of its attention dropout."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def scores(self) -> int:
        return self.num_virtual if self.num_scores is None else self.num_scores


@dataclass(frozen=True)
class PrimphormerConfig(HybridConfig):
    """Every option of Primphormer; raises ValueError on values that cannot work. `layer.local="none"` is the pure model."""

    GIVEN: ClassVar = ("node", "edge", "out_dim", "task")
    num_heads: Count = 4
    """Attention heads; each has width / num_heads channels."""
    attention: Literal["primal", "softmax", "performer", "exphormer", "bigbird", "primal_sequence", "none"] = "primal"
    """primal: the paper's attention. The other choices are from the paper's table 4: softmax over all pairs of a graph's nodes, FAVOR+ (performer), sparse attention over an expander graph (exphormer) or over blocks (bigbird), primal attention of sequences (primal_sequence), only message passing (none). `primal.dropout` also applies to softmax and primal_sequence."""
    primal: PrimalOptions = field(default_factory=PrimalOptions)
    sparse: SparseOptions = field(default_factory=SparseOptions)
    """Pairs of exphormer and bigbird."""
    eta: Amount = 0.1
    """η, the weight of the penalty Σ_l J_l²."""

    @property
    def reads_edges(self) -> bool:
        """Whether the model has edge states; exphormer reads those of the graph's edges."""
        return super().reads_edges or (self.attention == "exphormer" and self.sparse.edges)

    @property
    def reads_weights(self) -> bool:
        """Whether weights of edges change the output."""
        return self.layer.local != "none" or not self.local.is_paper

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)
        if self.attention == "none" and (self.layer.local == "none" or not self.local.is_paper):
            raise ValueError(
                "without attention every layer is its message passing alone, and there is none; set layer.local to gated_gcn or gcn"
            )

    @property
    def sharding(self) -> Literal["rows"] | None:
        """How several workers evaluate the model on one graph: each worker evaluates a range of the nodes, unless the model decomposes the graph's Laplacian itself."""
        whole = self.position.kind in ("laplacian", "stable_expressive") or self.position.reverse
        return "rows" if not whole and self.attention in ("primal", "none") else None
