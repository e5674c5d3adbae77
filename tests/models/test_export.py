"""Exports networks by `torch.export`, for graphs with categories and fixed sizes. After the export the original network works as before."""

import pytest
import torch
from torch import nn

from graphmill.models import GRIT, Graphs, GRITConfig, TokenGT, TokenGTConfig
from graphmill.models.options.features import Features

SIZES = {
    "width": 8,
    "num_heads": 2,
    "num_layers": 1,
    "node": Features(categories=(5, 3)),
    "edge": Features(categories=(2,)),
}
NETWORKS = {
    "grit": lambda: GRIT(GRITConfig(**SIZES)),
    "tokengt": lambda: TokenGT(TokenGTConfig(**SIZES)),
    "tokengt slots": lambda: TokenGT(TokenGTConfig(**SIZES, feature_table="slots", attention="performer")),
}


class OfTensors(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x, edge_index, edge_attr):
        ptr = torch.arange(3) * 4
        return self.network(Graphs(ptr, edge_index, x=x, edge_attr=edge_attr, max_nodes=4, max_edges=6))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_of_categories_computes_the_same(name):
    torch.manual_seed(0)
    model = OfTensors(NETWORKS[name]()).eval()
    ends = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 0]])
    edges = torch.cat([ends, ends + 4], dim=1)

    def drawn():
        x = torch.stack([torch.randint(0, count, (8,)) for count in (5, 3)], dim=1)
        return x, edges[:, torch.randperm(10)], torch.randint(0, 2, (10, 1))

    with torch.no_grad():
        program = torch.export.export(model, drawn(), strict=False).module()
        for other in (drawn(), drawn()):
            torch.testing.assert_close(program(*other), model(*other), rtol=0, atol=1e-6)
        x, edge_index, edge_attr = drawn()
        with pytest.raises(ValueError, match=r"feature column 1 must be in \[0, 3\)"):
            model(x + torch.tensor([0, 3]), edge_index, edge_attr)
        with pytest.raises(RuntimeError, match="a category lies outside its column's vocabulary"):
            program(x + torch.tensor([0, 3]), edge_index, edge_attr)
