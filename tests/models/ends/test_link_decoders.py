"""Compares decoders of links with their formulas in float64, one pair of nodes at a time."""

import pytest
import torch

from graphmill.models.ends.link_decoders import build_link_decoder
from graphmill.models.options.links import LinkDecoderOptions

D = 6


def reference(kind: str, decoder, u: torch.Tensor, v: torch.Tensor) -> float:
    weights = {name: value.double() for name, value in decoder.state_dict().items()}
    if kind == "dot":
        return float(sum(u[i] * v[i] for i in range(D)))
    if kind == "distmult":
        return float(sum(u[i] * weights["relation.vectors"][i] * v[i] for i in range(D)))
    if kind == "transe":
        square = sum((u[i] + weights["relation.vectors"][i] - v[i]) ** 2 for i in range(D))
        return float(weights["offset"] - square**0.5)
    hidden = torch.relu(weights["layers.0.weight"] @ (u * v) + weights["layers.0.bias"])
    return float(weights["layers.3.weight"] @ hidden + weights["layers.3.bias"])


@pytest.mark.parametrize("kind", ["dot", "distmult", "transe", "mlp"])
def test_scores_are_those_of_the_formula(kind) -> None:
    torch.manual_seed(3)
    decoder = build_link_decoder(LinkDecoderOptions(kind, width=D)).double().eval()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    u, z = torch.randn(4, D, dtype=torch.float64), torch.randn(7, D, dtype=torch.float64)
    expected = torch.tensor([[reference(kind, decoder, a, b) for b in z] for a in u], dtype=torch.float64)
    torch.testing.assert_close(decoder.against(u, z), expected)
    torch.testing.assert_close(decoder(u[:, None], z), expected)
    torch.testing.assert_close(decoder(u, z[:4]), expected.diagonal())


def test_transe_tells_directions_apart_and_has_a_gradient_where_nodes_meet() -> None:
    decoder = build_link_decoder(LinkDecoderOptions("transe", width=D))
    torch.nn.init.normal_(decoder.relation.vectors)
    u, v = torch.randn(2, D)
    assert decoder(u, v) != decoder(v, u)
    torch.nn.init.zeros_(decoder.relation.vectors)
    same = torch.randn(D, requires_grad=True)
    decoder(same, same.detach().clone()).backward()
    assert torch.isfinite(same.grad).all()


def test_bad_options() -> None:
    for wrong in ({"kind": "cosine"}, {"width": 0}, {"num_layers": 0}, {"dropout": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            LinkDecoderOptions(**wrong)


@pytest.mark.parametrize("kind", ["distmult", "transe", "mlp"])
def test_a_relation_has_a_vector_of_its_own(kind) -> None:
    """One decoder with three relations gives the scores of three decoders with one relation each. In `mlp`, a relation's vector scales the states."""
    torch.manual_seed(4)
    decoder = build_link_decoder(LinkDecoderOptions(kind, width=D), 3).double().eval()
    u, z, relation = torch.randn(5, D).double(), torch.randn(7, D).double(), torch.tensor([2, 0, 1, 2, 2])
    vectors = decoder.relation.vectors
    assert vectors.shape == (3, D)
    alone = build_link_decoder(LinkDecoderOptions(kind, width=D)).double().eval()
    own = {name: value for name, value in decoder.state_dict().items() if name != "relation.vectors"}
    for row, r in enumerate(relation.tolist()):
        more = {} if kind == "mlp" else {"relation.vectors": vectors.data[r]}
        alone.load_state_dict(own | more)
        state = u[row : row + 1] * vectors[r] if kind == "mlp" else u[row : row + 1]
        torch.testing.assert_close(decoder.against(u, z, relation)[row : row + 1], alone.against(state, z))
    torch.testing.assert_close(decoder(u[:, None], z, relation[:, None]), decoder.against(u, z, relation))
    torch.testing.assert_close(decoder(u, z[:5], relation), decoder.against(u, z[:5], relation).diagonal())


def test_the_dot_product_has_no_relations() -> None:
    with pytest.raises(ValueError, match="set distmult, transe or mlp"):
        build_link_decoder(LinkDecoderOptions("dot", width=D), 3)
