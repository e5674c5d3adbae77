"""Maps raw node or edge features to the model's width: sums the embeddings of categories, or applies a linear map to numbers."""

import functools
import warnings

import torch
from torch import Tensor, nn

from graphmill.models.options.features import Features
from graphmill.models.primitives.dropout import Dropout, MaskRows
from graphmill.models.primitives.segments import is_readable

# PyTorch warns once per process that CSR support is in beta; our tests cover the operations that are used here.
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)


class FeatureEncoder(nn.Module):
    """Σ_f Emb_f(column f), or a Linear; rows [n, F] → [n, width]. Raises ValueError on ids outside the vocabulary (CPU).

    Initial values are those of the released GRIT and GraphGPS: several tables are Xavier uniform (OGB's AtomEncoder and BondEncoder), a single
    table is N(0, 1) (GraphGym's TypeDict encoder). TokenGT and PPGT set other initial values.
    """

    def __init__(self, features: Features, width: int, slot: int = 0) -> None:
        """`slot`: lays the table out as the released TokenGT does: category c of column f has row 2 + slot · f + c. (There the data set and the
        collator each add 1.) Row 0 is padding and stays 0, row 1 is unused; initial values are N(0, 1)."""
        super().__init__()
        self.features, self.width = features, width
        self.linear = nn.Linear(features.dim, width) if features.dim else None
        # All columns share one table, so the sum needs one gather. The rows of column f begin at offset[f].
        num_columns = len(features.categories)
        num_rows = slot * num_columns if slot else sum(features.categories)
        self.embedding = nn.Embedding(num_rows, width, 0 if slot else None) if num_columns else None
        self.offset: Tensor
        offset = torch.tensor([0, *features.categories[:-1]] if num_columns else []).long().cumsum(0)
        offset = 2 + slot * torch.arange(num_columns) if slot else offset
        self.register_buffer("offset", offset, persistent=False)
        if self.embedding is not None and num_columns > 1 and not slot:
            for table in self.embedding.weight.split(features.categories):
                nn.init.xavier_uniform_(table)

    def forward(self, rows_nF: Tensor | None) -> Tensor:
        if rows_nF is None:
            raise ValueError(f"the model expects features ({self.features}), the batch has none; set features to empty")
        if rows_nF.dim() == 1:
            rows_nF = rows_nF.unsqueeze(1)
        columns = len(self.features.categories) or self.features.dim
        if rows_nF.shape[1] != columns:
            raise ValueError(
                f"features must have {columns} columns, got {rows_nF.shape[1]}; set the features of the config"
            )
        if self.linear is not None:
            return self.linear(rows_nF.to(self.linear.weight.dtype))
        assert self.embedding is not None
        rows_nF = checked_categories(rows_nF, self.features)
        return nn.functional.embedding_bag(rows_nF + self.offset, self.embedding.weight, mode="sum")


class NodeInput(nn.Module):
    """Prepares numeric node features for the first layer: scales the rows (a row of zeros stays), then applies dropout. Categories do not change.

    Sparse rows (bags of words) become a CSR matrix if only linear maps read them; products with a CSR matrix cost a tenth. Values and
    dropout are the same in both forms; sums over a row may round differently.
    """

    def __init__(self, dropout: float, scale_rows: bool, *, linear: bool) -> None:
        """`linear`: whether only `nn.Linear` modules read the rows."""
        super().__init__()
        self.dropout, self.scale_rows, self.linear = Dropout(dropout), scale_rows, linear

    def forward(self, x_nF: Tensor, rows: MaskRows | None = None) -> Tensor:
        """[n, F], dense or CSR."""
        if not x_nF.is_floating_point():
            return x_nF
        if self.linear and pays_as_csr(x_nF):
            return self._csr(x_nF, rows)
        if self.scale_rows:
            x_nF = nn.functional.normalize(x_nF, p=1.0, dim=1)
        return self.dropout(x_nF, rows)

    def _csr(self, x_nF: Tensor, rows: MaskRows | None) -> Tensor:
        row_Z, column_Z = x_nF.nonzero(as_tuple=True)  # row by row
        value_Z = x_nF[row_Z, column_Z]
        if self.scale_rows:
            total_n = value_Z.new_zeros(len(x_nF)).index_add_(0, row_Z, value_Z.abs())
            value_Z = value_Z / total_n.clamp_min(1e-12)[row_Z]
        value_Z = self.dropout.at(value_Z, row_Z * x_nF.shape[1] + column_Z, x_nF.shape[1], rows)
        start_n = torch.zeros(len(x_nF) + 1, dtype=torch.int64)
        start_n[1:] = torch.bincount(row_Z, minlength=len(x_nF)).cumsum(0)
        return torch.sparse_csr_tensor(start_n, column_Z, value_Z, x_nF.shape, check_invariants=False)


_LEAST_COLUMNS, _MOST_DENSE = 64, 1 / 16  # narrower or denser rows are not worth the conversion to CSR


def pays_as_csr(x_nF: Tensor) -> bool:
    """Estimates, from about a thousand rows, whether products with these rows cost less in CSR form (CPUs with MKL, single or double precision)."""
    sample_mF = x_nF[:: max(1, len(x_nF) // 1024)]
    return (
        is_readable(x_nF)
        and x_nF.dtype in (torch.float32, torch.float64)
        and x_nF.shape[1] >= _LEAST_COLUMNS
        and not x_nF.requires_grad
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkl.is_available()
        and int(torch.count_nonzero(sample_mF)) <= _MOST_DENSE * sample_mF.numel()
    )


def checked_categories(rows_nF: Tensor, features: Features) -> Tensor:
    """Returns the rows as int64. Raises ValueError on an id outside its column's vocabulary.

    On a GPU the check runs on the device, because reading the id would wait for it; a failed check ends the process with an assertion.
    """
    rows_nF = rows_nF.long()
    if not rows_nF.numel():
        return rows_nF
    sizes = _sizes.__wrapped__ if torch.compiler.is_compiling() else _sizes  # a trace's tensor must not be cached
    outside_nF = (rows_nF < 0) | (rows_nF >= sizes(features.categories, rows_nF.device))
    if not is_readable(rows_nF):
        torch._assert_async(~outside_nF.any(), "a category lies outside its column's vocabulary")
    elif outside_nF.any():
        row, column = (int(k) for k in outside_nF.nonzero()[0])
        raise ValueError(
            f"feature column {column} must be in [0, {features.categories[column]}), "
            f"got {int(rows_nF[row, column])} in row {row}; enlarge its vocabulary in categories"
        )
    return rows_nF


@functools.lru_cache(maxsize=64)
def _sizes(categories: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(categories, device=device)
