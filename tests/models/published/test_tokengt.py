"""Tests the mapping of names from the released TokenGT to ours, with state dicts of the released shapes."""

import pytest
import torch

from graphmill.models.tokengt.network import TokenGT
from graphmill.models.tokengt.published import convert
from tests.recipe_options import MOLECULES, options_of

FEATURE = "encoder.graph_encoder.graph_feature."


def published_state(width=768, num_layers=12, identifier="lap_encoder", identifier_dim=16, types=True, device=None):
    """A state dict with the names and shapes of the released model."""
    shapes = {
        FEATURE + "atom_encoder.weight": (4608, width),
        FEATURE + "edge_encoder.weight": (1536, width),
        FEATURE + "graph_token.weight": (1, width),
        FEATURE + "null_token.weight": (1, width),
        "encoder.lm_output_learned_bias": (1,),
        "encoder.embed_out.weight": (1, width),
    }
    if identifier:
        shapes[f"{FEATURE}{identifier}.weight"] = (width, 2 * identifier_dim)
    if types:
        shapes[FEATURE + "order_encoder.weight"] = (2, width)
    vectors = ["encoder.graph_encoder.emb_layer_norm", "encoder.graph_encoder.final_layer_norm", "encoder.layer_norm"]
    squares = ["encoder.masked_lm_pooler", "encoder.lm_head_transform_weight"]
    for i in range(num_layers):
        layer = f"encoder.graph_encoder.layers.{i}."
        vectors += [layer + "self_attn_layer_norm", layer + "final_layer_norm"]
        squares += [layer + f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")]
        squares += [layer + "feedforward.fc1", layer + "feedforward.fc2"]
    for name in vectors + squares:
        shapes[name + ".bias"] = (width,)
        shapes[name + ".weight"] = (width,) if name in vectors else (width, width)
    generator = torch.Generator().manual_seed(0)
    if device is not None:
        return {name: torch.empty(shape, device=device) for name, shape in shapes.items()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("options", "recipe", "changes"),
    [
        ({}, "lap", {}),
        ({"identifier": "orf_encoder", "identifier_dim": 64}, "orf", {"resample_in_eval": True}),
        ({"identifier": "rand_encoder"}, "lap", {"identifier": "positive", "resample_in_eval": True}),
        ({"identifier": None, "types": False}, "ablated", {}),
    ],
    ids=["lap", "orf", "random", "ablated"],
)
def test_published_shapes_are_those_of_the_recipe(options, recipe, changes):
    state = published_state(**options, device="meta")
    config, weights = convert(state)
    assert config == options_of(f"tokengt/pcqm4mv2_{recipe}", type_by_index=True, ffn_width=768, **changes, **MOLECULES)
    with torch.device("meta"):
        expected = TokenGT(config).state_dict()
    assert {k: v.shape for k, v in weights.items()} == {k: v.shape for k, v in expected.items()}


def test_every_tensor_goes_to_its_place():
    state = published_state(width=64, num_layers=2)
    state["encoder.graph_encoder.performer_proj_updater.calls_since_last_redraw"] = torch.zeros(())
    config, weights = convert(state, num_heads=4)
    model = TokenGT(config)
    model.load_state_dict(weights)
    layer, prefix = model.layers[1], "encoder.graph_encoder.layers.1."
    x = torch.randn(3, 64)
    q, k, v = layer.attention.qkv(x).chunk(3, dim=1)
    for ours, name in ((q, "q"), (k, "k"), (v, "v")):
        theirs = state[f"{prefix}self_attn.{name}_proj.weight"], state[f"{prefix}self_attn.{name}_proj.bias"]
        torch.testing.assert_close(ours, torch.nn.functional.linear(x, *theirs))
    for ours, name in (
        (layer.attention.out.weight, prefix + "self_attn.out_proj.weight"),
        (layer.attention_norm.bias, prefix + "self_attn_layer_norm.bias"),
        (layer.ffn_norm.weight, prefix + "final_layer_norm.weight"),
        (layer.fc1.weight, prefix + "feedforward.fc1.weight"),
        (layer.fc2.bias, prefix + "feedforward.fc2.bias"),
        (model.embedding_norm.weight, "encoder.graph_encoder.emb_layer_norm.weight"),
        (model.dead_norm.weight, "encoder.graph_encoder.final_layer_norm.weight"),
        (model.head.transform.weight, "encoder.lm_head_transform_weight.weight"),
        (model.head.norm.bias, "encoder.layer_norm.bias"),
        (model.head.bias, "encoder.lm_output_learned_bias"),
        (model.embedding.identifier.weight, FEATURE + "lap_encoder.weight"),
        (model.embedding.token_type.weight, FEATURE + "order_encoder.weight"),
        (model.embedding.edge.embedding.weight, FEATURE + "edge_encoder.weight"),
    ):
        assert torch.equal(ours, state[name])


def test_what_does_not_match_is_named():
    state = published_state(width=64, num_layers=2)
    with pytest.raises(ValueError, match=r"has 'encoder.embed_out.weight'.* has not"):
        convert({k: v for k, v in state.items() if k != "encoder.embed_out.weight"})
    with pytest.raises(ValueError, match=r"no place in TokenGT, such as 'encoder\.surplus'"):
        convert(state | {"encoder.surplus": torch.zeros(1)})
    with pytest.raises(ValueError, match="needs q_proj, k_proj and v_proj, got"):
        convert({k: v for k, v in state.items() if "layers.1.self_attn.k_proj" not in k})
    with pytest.raises(ValueError, match="numbered 0, 1"):
        convert({k.replace("layers.1", "layers.2"): v for k, v in state.items()})
    with pytest.raises(ValueError, match="512 rows per column, got 100"):
        convert(state | {FEATURE + "atom_encoder.weight": torch.zeros(100, 64)})


def test_features_read_the_rows_that_the_released_code_reads():
    """For category c of column f (counted from 0), the released wrapper adds 1 + 512 f and its collator adds 1. So the row is c + 512 f + 2."""
    state = {name: tensor.double() for name, tensor in published_state(width=16, num_layers=1).items()}
    config, weights = convert(state, num_heads=4)
    embedding = TokenGT(config).double().embedding
    embedding.load_state_dict(
        {k.removeprefix("embedding."): t for k, t in weights.items() if k.startswith("embedding.")}
    )
    generator = torch.Generator().manual_seed(1)
    for encoder, features, name in (
        (embedding.node, config.node, "atom_encoder"),
        (embedding.edge, config.edge, "edge_encoder"),
    ):
        rows = torch.stack([torch.randint(size, (20,), generator=generator) for size in features.categories], dim=1)
        table = state[f"{FEATURE}{name}.weight"]
        expected = sum(table[rows[:, f] + 512 * f + 2] for f in range(rows.shape[1]))
        torch.testing.assert_close(encoder(rows), expected, rtol=1e-12, atol=1e-12)


def test_a_performer_checkpoint_becomes_a_performer_as_released():
    state = published_state(width=64, num_layers=2)
    for i in range(2):
        matrix = torch.randn(44, 16, generator=torch.Generator().manual_seed(i))
        state[f"encoder.graph_encoder.layers.{i}.self_attn.fast_attention.projection_matrix"] = matrix
        state[f"encoder.graph_encoder.performer_proj_updater.instance.{i}.projection_matrix"] = matrix
    config, weights = convert(state, num_heads=4)
    assert (config.attention, config.performer_as_released, config.performer_features) == ("performer", True, 44)
    model = TokenGT(config)
    model.load_state_dict(weights)
    name = "encoder.graph_encoder.layers.1.self_attn.fast_attention.projection_matrix"
    assert torch.equal(model.layers[1].attention.favor.projection_RD, state[name])
