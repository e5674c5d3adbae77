"""Makes a knowledge graph in the file layout of FB15k-237. A rule maps each relation and the group of a triple's head to the group of its tail."""

from pathlib import Path

import numpy as np

NUM_GROUPS = 8
RULES = {"next to": lambda g: (g + 1) % NUM_GROUPS, "friend of": lambda g: g, "opposite": lambda g: NUM_GROUPS - 1 - g}


def triples(num_entities: int = 120, count: int = 1800, seed: int = 0) -> list[tuple[str, str, str]]:
    """Distinct triples in random order. The relation and the head's group determine the tail's group."""
    rng = np.random.default_rng(seed)
    group = np.arange(num_entities) % NUM_GROUPS
    names, found = list(RULES), set[tuple[str, str, str]]()
    while len(found) < count:
        head, name = int(rng.integers(num_entities)), names[rng.integers(len(names))]
        members = np.flatnonzero(group == RULES[name](group[head]))
        found.add((f"e{head}", name, f"e{members[rng.integers(len(members))]}"))
    rows = sorted(found)
    return [rows[i] for i in rng.permutation(len(rows))]


def write_layout(folder: Path, rows: list[tuple[str, str, str]], held_out: int = 120) -> dict[str, set]:
    """Writes train.txt, valid.txt and test.txt, and returns their triples."""
    folder.mkdir(parents=True, exist_ok=True)
    cut = len(rows) - 2 * held_out, len(rows) - held_out
    parts = {"train": rows[: cut[0]], "valid": rows[cut[0] : cut[1]], "test": rows[cut[1] :]}
    for split, part in parts.items():
        (folder / f"{split}.txt").write_text("".join("\t".join(row) + "\n" for row in part))
    return {split: set(part) for split, part in parts.items()}
