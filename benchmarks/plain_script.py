"""Trains the project's GECO model on a whole graph in plain PyTorch. `python -m benchmarks script` compares a command to this script.

    python -m benchmarks.plain_script GRAPH OPTIONS.json STEPS EVAL_EVERY LEARNING_RATE WEIGHT_DECAY

OPTIONS.json has the fields of a `GECOConfig`. The script prints one line of JSON with the scores of the epoch with the best validation score.
"""

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from graphmill.jobs.tasks.model_inputs import node_batch_graphs
from graphmill.models.geco.network import NodeGECO, param_groups
from graphmill.models.geco.options import GECOConfig
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import LocalOptions
from graphmill.samplers.access.router import local_router
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.vocabulary.options import RandomPartitionOptions
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import open_graph


def main(url: str, options: str, steps: int, eval_every: int, learning_rate: float, weight_decay: float) -> None:
    torch.manual_seed(0)
    sampler = RandomPartitionSampler(
        local_router(open_graph(url)), RandomPartitionOptions(num_chunks=1, root_splits=None)
    )
    batch = to_torch(sampler.sample(0, 0))
    graphs, x, split, y = node_batch_graphs(batch), batch.x, batch.split, batch.y
    assert x is not None
    assert split is not None
    assert y is not None
    fields = json.loads(Path(options).read_text())
    nested: dict[str, Any] = {
        "filter": FilterConfig(**fields.pop("filter")),
        "local": LocalOptions(**fields.pop("local")),
    }
    model = NodeGECO(GECOConfig(in_dim=x.shape[1], out_dim=int(y.max()) + 1, **fields, **nested))
    groups = param_groups(model, learning_rate, weight_decay, model.model.config.filter_learning_rate)
    optimizer = torch.optim.Adam([{**group, "weight_decay": weight_decay} for group in groups])
    best, kept = (-1.0, -1.0), model.state_dict()
    for step in range(1, steps + 1):
        model.train()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(graphs)[split == SPLIT_TRAIN], y[split == SPLIT_TRAIN]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % eval_every == 0:
            model.eval()
            with torch.no_grad():
                right = model(graphs).argmax(dim=1) == y
            if (valid := float(right[split == SPLIT_VALID].float().mean())) > best[0]:
                best, kept = (valid, float(right[split == SPLIT_TEST].float().mean())), deepcopy(model.state_dict())
    torch.save(kept, "best.pt")
    print(json.dumps({"valid": best[0], "test": best[1]}))


if __name__ == "__main__":
    url, options, steps, eval_every, learning_rate, weight_decay = sys.argv[1:]
    main(url, options, int(steps), int(eval_every), float(learning_rate), float(weight_decay))
