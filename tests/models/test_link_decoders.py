"""Decoders of links against their formulas in float64, one pair at a time."""

import pytest
import torch

from models.link_decoders import build_link_decoder
from models.options.links import LinkDecoderOptions

D = 6


def reference(kind: str, decoder, u: torch.Tensor, v: torch.Tensor) -> float:
    weights = {name: value.double() for name, value in decoder.state_dict().items()}
    if kind == "dot":
        return float(sum(u[i] * v[i] for i in range(D)))
    if kind == "distmult":
        return float(sum(u[i] * weights["relation"][i] * v[i] for i in range(D)))
    if kind == "transe":
        square = sum((u[i] + weights["relation"][i] - v[i]) ** 2 for i in range(D))
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
    torch.nn.init.normal_(decoder.relation)
    u, v = torch.randn(2, D)
    assert decoder(u, v) != decoder(v, u)
    torch.nn.init.zeros_(decoder.relation)
    same = torch.randn(D, requires_grad=True)
    decoder(same, same.detach().clone()).backward()
    assert torch.isfinite(same.grad).all()


def test_bad_options() -> None:
    for wrong in ({"kind": "cosine"}, {"width": 0}, {"num_layers": 0}, {"dropout": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            LinkDecoderOptions(**wrong)
