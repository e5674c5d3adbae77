"""Tests open options of a run: which source sets a value, the rules as pure functions, and the resulting run."""

import json
from dataclasses import replace

import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import RECIPES, config_tree, read_config, read_recipe
from graphmill.jobs.config.defaults import RULES, GraphFacts, adjusted_homophily, choose, graph_facts, steps_per_epoch
from graphmill.jobs.config.defaults import Setting as At
from graphmill.jobs.config.registry import PLACEHOLDERS, Inputs
from graphmill.jobs.resolve.resolve import Facts, read_resolved, resolve
from graphmill.models.options.features import Features
from graphmill.models.options.local import LocalOptions
from graphmill.samplers.access.router import local_router
from graphmill.samplers.methods.registry import build_sampler
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.runs import config_of, node_run

CITATIONS = GraphFacts(2_708, 10_556, 1_433, 7, 140, homophily=0.8)
GRID = GraphFacts(10_000, 78_804, 7, 2, 5_000, homophily=0.0)
SHOP = GraphFacts(13_752, 491_722, 767, 10, 8_251, homophily=0.8)
WIKI = GraphFacts(890, 17_708, 2_000, 5, 427, homophily=0.04)
LARGE = GraphFacts(2_449_029, 123_718_280, 100, 47, 196_615, homophily=0.8)
EVERY = (CITATIONS, GRID, SHOP, WIKI, LARGE, GraphFacts(1, 0, 1, 0, 1))


def resolved_on(facts: GraphFacts, *words: object):
    inputs = Inputs(node=Features(dim=facts.num_features), out_dim=facts.num_classes or 1, task="node")
    return resolve(config_of(*words), Facts(inputs, {}, None, graph=facts))


@pytest.mark.parametrize("facts", EVERY)
@pytest.mark.parametrize("model", ["geco", "gcn", "gat", "sage"])
@pytest.mark.parametrize(
    "sampler",
    ["random-partition", "neighbor", *(pytest.param(name, marks=pytest.mark.long) for name in ("ppr", "saint"))],
)
def test_every_graph_gets_a_run_that_reads_back_equal(facts, model, sampler):
    resolved = resolved_on(facts, "--model", model, "--sampler", sampler)
    assert resolved.config.open == ()
    assert read_resolved(json.loads(json.dumps(resolved.tree()))) == resolved
    assert len(resolved.chosen) == len(config_of("--model", model, "--sampler", sampler).open) > 0
    for choice in resolved.chosen:
        option, reason = choice.split(": ", 1)
        assert option.startswith("--")
        assert reason.strip()
        assert "\n" not in reason
    lines = resolved.choices
    assert sum(line.count(" --") for line in lines) + len(lines) == len(resolved.chosen)
    # If the user sets the chosen values by flags, the resolved run is the same.
    flags = [word for choice in resolved.chosen for word in choice.split(": ")[0].split()]
    said = resolved_on(facts, "--model", model, "--sampler", sampler, *flags)
    assert said.config == resolved.config
    assert said.chosen == ()


OTHERS = ["primphormer", "tokengt", "grit", "ppgt", "rsage"]


def recipe_of(model: str, kind: str = "nodes"):
    return read_config(config_tree("nodes", read_recipe(f"defaults/{kind}-{model}.yaml")))


@pytest.mark.parametrize("model", OTHERS)
@pytest.mark.parametrize("facts", [SHOP, GRID, WIKI, LARGE])
def test_models_with_recipes_keep_all_but_the_length_of_a_run(model, facts):
    resolved, recipe = resolved_on(facts, "--model", model), recipe_of(model).options()
    ours = resolved.config.options()
    free = {"fit.epochs", "fit.eval_every", "fit.patience", "fit.warmup_epochs", "sampler.num_chunks", "run.defaults"}
    assert {path for path in ours if ours[path] != recipe[path]} <= free | {"fit.micro_batches"}
    assert read_resolved(json.loads(json.dumps(resolved.tree()))) == resolved


@pytest.mark.parametrize("model", OTHERS)
@pytest.mark.parametrize("facts", EVERY)
def test_models_with_recipes_have_steps_enough_and_their_schedules(model, facts):
    config, recipe = resolved_on(facts, "--model", model, "--workers", 1).config, recipe_of(model).fit
    at = At(facts, 1, config.options())
    assert config.fit.epochs * steps_per_epoch(at) >= (1000, 500, 1000, 1000)[at.kind]
    assert config.fit.warmup_epochs <= config.fit.epochs // 10
    assert config.fit.patience is not None
    if config.fit.schedule == "cosine":
        assert config.fit.epochs >= recipe.epochs
        share = recipe.warmup_epochs / recipe.epochs
        assert config.fit.warmup_epochs == pytest.approx(share * config.fit.epochs, abs=1)
    else:
        assert at.kind == 0
        assert config.fit.warmup_epochs == 0


def test_epochs_that_are_said_shorten_the_warm_up():
    fits = [resolved_on(SHOP, "--model", "grit", "--fit.epochs", epochs).config.fit for epochs in (3, 20, 40)]
    assert [fit.warmup_epochs for fit in fits] == [0, 2, 4]
    fit = resolved_on(SHOP, "--model", "grit", "--fit.epochs", 3, "--fit.warmup_epochs", 2).config.fit
    assert (fit.epochs, fit.warmup_epochs) == (3, 2)


def test_sampled_scores_are_not_taken_after_each_short_epoch():
    # With a batch size of 64, 140 roots need three batches.
    fit = resolved_on(CITATIONS, "--model", "ppgt", "--workers", 1).config.fit
    assert (fit.epochs, fit.eval_every, fit.patience) == (334, 4, 10)
    assert resolved_on(SHOP, "--model", "ppgt", "--workers", 1).config.fit.eval_every == 1


@pytest.mark.parametrize(
    ("facts", "chunks"), [(CITATIONS, 1), (replace(CITATIONS, num_edges=40_000), 4), (SHOP, 4), (GRID, 4), (LARGE, 49)]
)
def test_chunks_grow_with_few_labels_alone(facts, chunks):
    assert resolved_on(facts, "--model", "tokengt").config.sampler.options.num_chunks == chunks


@pytest.mark.parametrize("model", ["primphormer", "tokengt"])
def test_few_labels_have_the_gate_that_geco_has(model):
    options = resolved_on(CITATIONS, "--model", model).config.options()
    geco = resolved_on(CITATIONS).config.options()
    for path in ("join", "block", "norm", "dropout", "residual"):
        assert options[f"model.local.{path}"] == geco[f"model.local.{path}"]
    for path in ("model.num_layers", "model.width", "model.input_dropout", "fit.learning_rate", "fit.weight_decay"):
        assert options[path] == geco[path]
    assert options.get("model.layer.local", "none") == "none"


def test_primphormers_own_local_block_is_kept_where_it_is_said():
    options = resolved_on(CITATIONS, "--model", "primphormer", "--model.layer.local", "gcn").config.model.options
    assert (options.layer.local, options.local) == ("gcn", LocalOptions())
    options = resolved_on(CITATIONS, "--model", "primphormer", "--model.attention", "none").config.model.options
    assert (options.layer.local, options.local) == ("gcn", LocalOptions())
    words = ("--model.layer.local", "none", "--model.local", "sage", "--model.local.join", "gate")
    options = resolved_on(SHOP, "--model", "primphormer", *words).config.model.options
    assert (options.layer.local, options.local.block, options.width) == ("none", "sage", 128)


@pytest.mark.parametrize("model", OTHERS)
def test_a_recipe_that_is_asked_for_chooses_nothing(model):
    config = config_of("--model", model, "--run.defaults", "recipe")
    assert config.open == ()
    assert config == recipe_of(model)


def on_a_set(num_train: int, *words: object):
    facts = GraphFacts(20 * num_train, 40 * num_train, 0, 0, num_train, is_set=True)
    config = config_of(*words, "--workers", 1, kind="graphs")
    return resolve(config, Facts(PLACEHOLDERS["graphs"], {}, None, graph=facts)).config


@pytest.mark.parametrize("model", ["tokengt", "grit", "ppgt", "geco", "primphormer"])
def test_small_sets_of_graphs_are_trained_for_longer(model):
    recipe = recipe_of(model, "graphs")
    fits = [on_a_set(size, "--model", model).fit for size in (50, 240, 2_000, 3_200, 300_000)]
    # A batch has 64 graphs.
    assert [(fit.epochs, fit.warmup_epochs) for fit in fits] == [(1000, 67), (250, 17), (32, 2), (30, 2), (30, 2)]
    for fit in fits:
        assert replace(fit, epochs=30, warmup_epochs=2, micro_batches=None) == recipe.fit
    assert on_a_set(240, "--model", model, "--run.defaults", "recipe").fit.epochs == recipe.fit.epochs
    said = on_a_set(240, "--model", model, "--fit.epochs", 12).fit
    assert (said.epochs, said.warmup_epochs) == (12, 1)
    assert on_a_set(240, "--model", model, "--fit.steps", 40).fit.epochs == 10


def test_a_budget_of_nodes_does_not_tell_how_many_batches_a_set_has():
    words = ("--sampler.max_graphs", 0, "--sampler.max_nodes", 900)
    assert on_a_set(240, *words).fit.epochs == 30


@pytest.mark.parametrize("path", sorted(RULES))
def test_what_is_said_wins_over_its_rule(path):
    model = {"model.residual": "gcn", "model.norm": "gcn", "model.layer.local": "primphormer"}.get(path, "geco")
    options = resolved_on(CITATIONS, "--model", model).config.options()
    if path not in options:
        pytest.skip(f"{model} has no {path}")
    others = {
        "layer": "batch",
        "linear": "none",
        "gcn": "sage",
        "appnp": "gcn",
        "gate": "top",
        "adam": "adamw",
        "constant": "cosine",
    }
    value = {int: "1", float: "0.25", bool: "no"}.get(type(options[path]), others.get(options[path], "none"))
    config = config_of("--model", model, f"--{path}", value)
    assert path not in config.open
    ours = resolve(config, Facts(Inputs(node=Features(dim=9), out_dim=3, task="node"), {}, None, graph=CITATIONS))
    assert ours.config.options()[path] == config.options()[path]
    assert not [choice for choice in ours.chosen if choice.startswith(f"--{path} ")]


def test_a_recipe_of_ours_is_what_it_says():
    for path in RECIPES.rglob("*.yaml"):
        if path.parent.name == "baselines":
            continue
        recipe = read_recipe(str(path))
        if recipe.get("kind") == "nodes" and "model" in recipe:
            config = read_config(config_tree("nodes", recipe))
            assert config.open == (), path
            config = config.changed(("data.path", "a graph"))
            facts = Facts(Inputs(node=Features(dim=9), out_dim=2, task="node"), {}, None, graph=SHOP)
            assert resolve(config, facts).config == config, path


def test_a_recipe_leaves_open_what_it_does_not_say(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("model: {name: geco, width: 64}\nfit: {epochs: auto, learning_rate: 0.01}\n")
    config = read_config(config_tree("nodes", read_recipe(str(own))))
    assert "fit.epochs" in config.open
    assert {"model.width", "fit.learning_rate"}.isdisjoint(config.open)
    own.write_text("base: defaults/nodes-geco.yaml\nmodel: {width: auto}\n")
    config = read_config(config_tree("nodes", read_recipe(str(own))))
    assert config.open == ("model.width",)
    assert read_config(config.tree()) == config


def test_open_options_stay_open_until_the_graph_is_known():
    config = config_of("--model.width", 32)
    resolved = resolve(config, Facts(Inputs(node=Features(dim=9), out_dim=3, task="node"), {}, None))
    assert resolved.config == config
    assert resolved.chosen == ()
    assert read_config(config.tree()) == config
    assert config.changed(("model.width", "auto")).open == config_of().open


def test_depth_follows_the_hops_that_are_said():
    assert resolved_on(SHOP, "--sampler", "neighbor", "--sampler.fanouts", 9, 4).config.model.options.num_layers == 2
    with pytest.raises(ConfigError, match="one entry per layer"):
        resolved_on(SHOP, "--sampler", "neighbor", "--sampler.fanouts", 9, 4, "--model.num_layers", 3)


def test_a_whole_graph_that_is_the_batch_is_not_cut():
    resolved = resolved_on(LARGE, "--run.parallel", "graph")
    assert resolved.config.sampler.options.num_chunks is None
    assert steps_per_epoch(At(LARGE, 2, resolved.config.options())) == 1


def test_no_patience_where_scores_choose_nothing():
    assert resolved_on(LARGE, "--evaluation.chunks", 4).config.fit.patience is None
    choosing = resolved_on(LARGE, "--evaluation.chunks", 4, "--evaluation.select_by", "estimate")
    assert choosing.config.fit.patience is not None


@pytest.mark.parametrize("steps", [1, 7, 250])
@pytest.mark.parametrize("workers", [1, 2])
def test_steps_become_whole_epochs(steps, workers):
    words = ["--fit.steps", steps, "--sampler.num_chunks", 6, "--workers", workers]
    config = resolved_on(SHOP, *words).config
    assert (config.fit.epochs, config.fit.steps) == (-(-steps * workers // 6), None)
    # A recipe that sets the epochs gives the same result.
    config = read_config(config_tree("nodes", read_recipe("geco/amazon_chunks.yaml"))).changed(("fit.steps", steps))
    chosen = choose(config.open, config.options(), SHOP, 1)
    assert list(chosen) == ["fit.epochs"]
    assert chosen["fit.epochs"].value == -(-steps // 4)


def test_epochs_that_are_said_stand_in_place_of_a_recipes_steps():
    def fit(recipe, **said):
        return read_config(config_tree("nodes", read_recipe(recipe), {"fit": said})).fit

    assert (fit("baselines/gcn.yaml").steps, fit("baselines/gcn.yaml", learning_rate=0.1).steps) == (500, 500)
    assert (fit("baselines/gcn.yaml", epochs=12).epochs, fit("baselines/gcn.yaml", epochs=12).steps) == (12, None)
    assert fit("baselines/gcn.yaml", epochs=12, steps=9).steps == 9
    molhiv = read_config(config_tree("graphs", read_recipe("primphormer/molhiv.yaml"), {"fit": {"warmup_epochs": 2}}))
    assert molhiv.fit.num_warmup_steps(100) == 200


@pytest.mark.parametrize("what", ["", "warmup_"])
def test_epochs_and_steps_are_not_said_at_once(what):
    both = (f"--fit.{what}epochs", 12, f"--fit.{what}steps")
    with pytest.raises(ConfigError, match=rf"expected --fit\.{what}epochs or --fit\.{what}steps, got both"):
        config_of(*both, 9)
    assert getattr(config_of(*both, "none").fit, f"{what}epochs") == 12


def test_what_a_run_chooses_of_the_warm_up_leaves_steps_that_are_said():
    fit = resolved_on(SHOP, "--fit.warmup_steps", 100).config.fit
    assert (fit.warmup_steps, fit.num_warmup_steps(7)) == (100, 100)
    assert resolved_on(SHOP, "--fit.warmup_epochs", 3).config.fit.num_warmup_steps(7) == 21


def test_steps_of_a_sampler_that_does_not_count_its_batches_are_refused():
    with pytest.raises(ConfigError, match=r"set --fit\.epochs"):
        choose((), {"fit.steps": 9, "sampler": "mine:Own"}, SHOP, 1)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("graph") / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=500)), url, IngestOptions(num_partitions=3))
    return open_graph(url)


SAMPLERS = [
    ["random-partition"],
    ["random-partition", "--sampler.num_chunks", "7", "--sampler.chunks_per_batch", "2"],
    ["random-partition", "--sampler.cut", "partitions"],
    ["random-partition", "--sampler.cut", "within"],
    ["random-partition", "--sampler.cut", "within", "--sampler.num_chunks", "9"],
    ["neighbor", "--sampler.batch_size", "9"],
    ["node2subgraph", "--sampler.batch_size", "9"],
    ["ppr", "--sampler.batch_size", "9"],
    ["saint", "--sampler.num_walks", "9"],
    ["saint", "--sampler.batches_per_epoch", "5"],
]


@pytest.mark.parametrize("words", SAMPLERS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_steps_are_counted_as_the_sampler_counts_them(graph, words, workers):
    resolved = node_run(graph, "--sampler", *words, "--workers", workers)
    sampler = build_sampler(resolved.training, local_router(graph), workers)
    at = At(graph_facts(graph.manifest, 0), workers, resolved.config.options())
    assert steps_per_epoch(at) == sampler.num_batches // workers


def test_facts_are_the_manifests(graph):
    facts = graph_facts(graph.manifest, 0)
    assert (facts.num_nodes, facts.num_classes, facts.num_features, facts.num_partitions) == (500, 47, 100, 3)
    assert facts.num_train == 40
    assert facts.homophily == adjusted_homophily(graph.manifest.measured.splits[0])
    assert replace(facts, num_train=94).train_per_class == 2


@pytest.mark.parametrize(
    ("agreeing", "counts", "adjusted"),
    [(68, (80, 20), 0.0), (100, (80, 20), 1.0), (50, (50, 50), 0.0), (75, (50, 50), 0.5), (10, (30, 0), None)],
)
def test_homophily_is_what_is_above_chance(graph, agreeing, counts, adjusted):
    split = replace(
        graph.manifest.measured.splits[0],
        num_training_edges=100,
        num_agreeing_edges=agreeing,
        class_counts=((0, 0), counts, (0, 0), (0, 0)),
    )
    found = adjusted_homophily(split)
    assert found == (None if adjusted is None else pytest.approx(adjusted, abs=1e-12))
    # With fewer than 40 edges between training nodes, the homophily is unknown.
    assert adjusted_homophily(replace(split, num_training_edges=38, num_agreeing_edges=min(38, agreeing))) is None


def test_homophily_by_weight_is_read_unless_weights_are_not(graph):
    counts = ((0, 0), (50, 50), (0, 0), (0, 0))
    split = replace(
        graph.manifest.measured.splits[0], num_training_edges=100, num_agreeing_edges=50, class_counts=counts
    )
    split = replace(split, weighted_homophily=0.9)
    assert adjusted_homophily(split) == 0
    assert adjusted_homophily(split, by_weight=True) == pytest.approx(0.8)
    assert adjusted_homophily(replace(split, weighted_homophily=None), by_weight=True) == 0


def test_the_four_kinds_of_graphs():
    assert [At(facts, 1, {}).kind for facts in (CITATIONS, SHOP, GRID, WIKI, LARGE)] == [0, 1, 2, 3, 1]
    assert At(replace(WIKI, num_train=2_000), 1, {}).kind == 2
    assert At(replace(WIKI, num_train=100, num_features=7), 1, {}).kind == 3  # few labels; neighbors of other classes
    assert At(replace(WIKI, num_train=100, homophily=None), 1, {}).kind == 0


@pytest.mark.parametrize(
    ("facts", "block", "join", "layers", "width"),
    [
        (CITATIONS, "appnp", "gate", 1, 64),
        (replace(SHOP, num_train=200), "appnp", "gate", 1, 64),
        (SHOP, "gat", "gate", 2, 64),
        (GRID, "sage", "top", 8, 64),
        (WIKI, "gcn", "gate", 2, 64),
        (LARGE, "gcn", "gate", 3, 256),
        (replace(GRID, num_edges=1_038_000), "gcn", "gate", 4, 64),
        (replace(LARGE, homophily=0.0), "gcn", "gate", 4, 128),
    ],
)
def test_blocks_that_were_compared_on_small_graphs_stay_there(facts, block, join, layers, width):
    model = resolved_on(facts).config.model.options
    assert (model.local.block, model.local.join, model.num_layers, model.width) == (block, join, layers, width)


@pytest.mark.parametrize(
    ("edges", "norm", "dropout", "rate"), [(78_804, "batch", 0.2, 0.01), (1_038_000, "layer", 0.5, 0.003)]
)
@pytest.mark.parametrize("model", ["geco", "gcn"])
def test_unlike_neighbors_that_are_many_ask_for_slow_steps_and_much_dropout(model, edges, norm, dropout, rate):
    config = resolved_on(replace(GRID, num_edges=edges), "--model", model).config
    options = config.model.options
    assert (options.local.norm, options.dropout, options.local.dropout) == (norm, dropout, dropout)
    assert config.fit.learning_rate == rate


@pytest.mark.parametrize(("edges", "norm"), [(20_000, "none"), (40_000, "layer")])
def test_few_labels_have_a_norm_where_nodes_have_many_neighbors(edges, norm):
    options = resolved_on(replace(CITATIONS, num_edges=edges)).config.model.options
    assert (options.local.norm, options.scale_rows) == (norm, False)


def test_a_block_that_hears_single_edges_is_chosen_where_edges_have_features():
    inputs = Inputs(node=Features(dim=9), edge=Features(dim=2), out_dim=3, task="node")
    ours = resolve(config_of("--data.edge_features"), Facts(inputs, {}, None, graph=CITATIONS))
    assert ours.config.model.options.local.block == "gcn"
    # The run also resolves before the graph is known.
    resolve(config_of("--data.edge_features"), Facts(PLACEHOLDERS["nodes"], {}, None))


def test_a_block_whose_sums_can_be_corrected_is_chosen_for_chunks_that_are():
    words = ["--sampler.num_chunks", 4, "--sampler.corrected"]
    assert resolved_on(SHOP, *words).config.model.options.local.block == "gcn"


def test_a_whole_graph_step_is_not_validated_each_time():
    assert [resolved_on(facts).config.fit.eval_every for facts in (CITATIONS, SHOP, GRID, LARGE)] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("facts", "words", "expected"),
    [
        (CITATIONS, "--model geco --model.local.residual identity", {"model.local.join": "gate"}),
        (CITATIONS, "--model tokengt --model.local.dropout 0.3", {"model.local.join": "gate"}),
        (CITATIONS, "--model primphormer --model.local.block sage", {"model.layer.local": "none"}),
        (CITATIONS, "--model primphormer --model.local.join gate", {"model.layer.local": "none"}),
        (
            SHOP,
            "--model primphormer --model.local.block gcn",
            {"model.local.join": "gate", "model.layer.local": "none"},
        ),
        (SHOP, "--model tokengt --model.local.dropout 0.3", {"model.local.join": "gate", "model.local.block": "lcb"}),
        (CITATIONS, "--model gat --model.num_heads 6", {"model.width": 66}),
        (SHOP, "--model tokengt --model.num_heads 5", {"model.width": 65}),
        (
            CITATIONS,
            "--model primphormer --model.layer.local gated_gcn --model.num_heads 6",
            {"model.local.join": "serial"},
        ),
        (SHOP, "--model primphormer --model.attention none --model.num_heads 6", {"model.layer.local": "gcn"}),
        (CITATIONS, "--model primphormer --model.position.kind stable_laplacian", {"model.layer.local": "gated_gcn"}),
        (SHOP, "--model.jump sum --model.local.block gat --model.local.num_heads 6", {"model.local.join": "serial"}),
        (SHOP, "--model.width 50", {"model.local.block": "gcn"}),
        (SHOP, "--model.local.num_heads 3", {"model.local.block": "gat", "model.width": 66}),
        (SHOP, "--model.jump sum", {"model.local.join": "serial", "model.local.block": "lcb"}),
        (SHOP, "--model.norm pre", {"model.local.join": "serial"}),
        (GRID, "--model.block hyena", {"model.local.join": "serial", "model.local.dropout": 0.0}),
        (SHOP, "--model primphormer --data.edge_features", {"model.layer.local": "gated_gcn"}),
    ],
)
def test_choices_go_with_what_is_said(facts, words, expected):
    values = resolved_on(facts, *words.split()).config.options()
    assert {path: values[path] for path in expected} == expected


def test_what_is_said_and_does_not_go_together_is_refused_whatever_is_open():
    words = "--model tokengt --model.local.join serial --model.local.block gcn"
    with pytest.raises(ConfigError, match=r"set --model\.local\.join to gate or top"):
        config_of(*words.split())


def test_a_graph_that_is_spread_over_workers_has_the_norm_that_it_has_in_one_process():
    words = ["--run.parallel", "graph", "--workers", 2]
    assert resolved_on(GRID, *words).config.model.options.local.norm == "batch"
    assert resolved_on(GRID).config.model.options.local.norm == "batch"
    assert resolved_on(GRID, "--model", "gcn", *words).config.model.options.norm == "batch"


def test_a_model_of_ones_own_is_not_warmed_up_all_along(tmp_path, monkeypatch):
    lines = ["from dataclasses import dataclass", "@dataclass(frozen=True)", "class Own:", "    width: int = 8"]
    lines += ["    def build(self, inputs):", "        raise NotImplementedError"]
    (tmp_path / "ones_own_model.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    facts = replace(LARGE, num_train=1_200_000)
    fit = resolved_on(facts, "--model", "ones_own_model:Own", "--sampler", "neighbor", "--workers", 1).config.fit
    assert (fit.epochs, fit.warmup_epochs) == (1, 0)
    fit = resolved_on(SHOP, "--model", "ones_own_model:Own", "--workers", 1).config.fit
    assert (fit.epochs, fit.warmup_epochs) == (500, 50)


def test_sampled_scores_are_rare_for_the_classic_models_too():
    words = ["--model", "gcn", "--evaluation", "sampled", "--sampler", "node2subgraph"]
    fit = resolved_on(CITATIONS, *words, "--sampler.batch_size", 256, "--workers", 1).config.fit
    assert fit.eval_every == 10
