"""Knowledge graphs: triples of a head, a relation and a tail, as FB15k-237 and WN18RR are published: train.txt, valid.txt and test.txt in a folder.

A line is three strings between tabs. Each triple becomes two edges, from head to tail by the relation, and back by its inverse, whose number is
that of the relation after those of all relations. So a link is predicted from either end by its source and relation (Lacroix et al., ICML
2018, section 4), and samplers, which follow in-edges, reach both.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from graphmill.core.errors import DataError
from graphmill.storage.format.source import SPLITS
from graphmill.storage.format.stored_links import Links
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.string_ids import StringIds, id_strings

INVERSE = "inverse of "  # before a relation's name
_COLUMNS = ("head", "relation", "tail")


def read_triples(folder: str | Path, scratch: str | None = None) -> ArrayGraph:
    """The graph of train.txt; the triples of valid.txt and test.txt, where there are any, are held out.

    Entities and relations are numbered as they come. Raises DataError with the file for what is no triple. `scratch`: a folder for
    the entities' names; None: the system's.
    """
    folder, entities, relations = Path(folder), StringIds(scratch), StringIds(scratch)
    held_out = [split for split in ("valid", "test") if (folder / f"{split}.txt").exists()]
    if len(held_out) == 1:
        raise DataError(
            f"{folder}: expected valid.txt and test.txt, or neither, got {held_out[0]}.txt alone; add the other one"
        )
    parts: dict[str, Any] = {}
    for split in SPLITS:
        path = folder / f"{split}.txt"
        if path.exists() or split == "train":
            head, relation, tail = _read(path)
            parts[split] = np.stack([entities.add(head), relations.add(relation), entities.add(tail)])
    names = relations.strings.part(0, len(relations)).to_pylist() if len(relations) else []
    return knowledge_graph(f"triples:{folder.resolve().name}", names, **parts, entities=entities)


def knowledge_graph(
    name: str,
    relations: Sequence[str],
    train: np.ndarray,
    valid: np.ndarray | None = None,
    test: np.ndarray | None = None,
    *,
    num_nodes: int | None = None,
    entities: StringIds | None = None,
) -> ArrayGraph:
    """Of triples by numbers, int64 [3, m]: heads, relations, tails. Each triple of a part counts once.

    `num_nodes`: where there are no names. Raises DataError for arrays that are no triples, a relation without a name, and a triple of two parts.
    """
    count, parts = len(relations), {}
    names = (*relations, *(INVERSE + each for each in relations))
    for split, given in (("train", train), ("valid", valid), ("test", test)):
        if given is None:
            continue
        triples = np.asarray(given)
        if triples.ndim != 2 or len(triples) != 3 or triples.dtype.kind not in "iu":
            raise DataError(
                f"{name}: {split}: expected integers of shape [3, m], got {triples.dtype} {list(triples.shape)}; transpose rows"
            )
        if split == "train" and not triples.shape[1]:
            raise DataError(f"{name}: train: expected at least one triple, got none")
        parts[split] = np.unique(triples.astype(np.int64), axis=1)
        relation = parts[split][1]
        if len(relation) and not 0 <= relation.min() <= relation.max() < count:
            raise DataError(
                f"{name}: {split}: expected relations 0 to {count - 1}, got {relation.min()} to {relation.max()}"
            )
    _check_apart(name, parts, relations, entities)
    source, number, destination = _both_ways(parts.pop("train"), count)
    links = None
    if parts:
        held_out = {SPLITS[split]: _both_ways(part, count) for split, part in parts.items()}
        links = Links.join([Links.of(u, v, code, relation=r) for code, (u, r, v) in held_out.items()])
    return ArrayGraph(
        name=name,
        num_nodes=len(entities) if entities is not None else num_nodes or 0,
        src=source,
        dst=destination,
        edge_feature=number[:, None],
        relations=names,
        links=links,
        strings=entities,
        provenance={"triples": f"{len(source) // 2}, each as two edges"},
    )


def _both_ways(triples: np.ndarray, num_relations: int) -> np.ndarray:
    """int64 [3, 2m]: sources, relations, destinations of the triples and of their inverses."""
    head, relation, tail = triples
    return np.concatenate([triples, np.stack([tail, relation + num_relations, head])], axis=1)


def _check_apart(
    name: str, parts: Mapping[str, np.ndarray], relations: Sequence[str], entities: StringIds | None
) -> None:
    """Raises DataError for a triple of two parts; each has its own once."""
    every = np.concatenate(list(parts.values()), axis=1)
    _, place, repeats = np.unique(every, axis=1, return_index=True, return_counts=True)
    if not len(again := place[repeats > 1]):
        return
    triple = every[:, again[0]]
    where = [split for split, part in parts.items() if (part == triple[:, None]).all(axis=0).any()]
    head, relation, tail = triple.tolist()
    ends = [str(end) if entities is None else entities.strings.part(end, end + 1)[0].as_py() for end in (head, tail)]
    raise DataError(
        f"{name}: expected different triples in train, valid and test, found {ends[0]!r}, {relations[relation]!r}, {ends[1]!r} in {' and '.join(where)}, "
        f"{len(again)} such; take them out of one"
    )


def _read(path: Path) -> list[pa.LargeStringArray]:
    """The three columns."""
    if path.exists() and not path.stat().st_size:
        return [pa.array([], pa.large_string())] * 3
    try:
        table = pa_csv.read_csv(
            path,
            pa_csv.ReadOptions(column_names=_COLUMNS),
            pa_csv.ParseOptions(delimiter="\t", quote_char=False),
            pa_csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, pa.string()), strings_can_be_null=False),
        )
    except FileNotFoundError:
        raise DataError(
            f"{path}: expected a file of triples (head, relation, tail, between tabs), found none"
        ) from None
    except (pa.ArrowException, OSError) as error:
        told = str(error).splitlines()[0][:200]
        raise DataError(f"{path}: expected a head, a relation and a tail between tabs in each line: {told}") from error
    return [id_strings(table[name], lambda row: f"{path}: triple {row + 1}", name) for name in _COLUMNS]
