"""Knowledge graphs: triples of a head, a relation and a tail, as FB15k-237 and WN18RR are published: train.txt, valid.txt and test.txt in a folder.

A line is three strings between tabs. Each triple becomes two edges, from head to tail by the relation, and back by its inverse, whose number is
that of the relation after those of all relations. So a link is predicted from either end by its source and relation (Lacroix et al., ICML
2018, section 4), and samplers, which follow in-edges, reach both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from storage.errors import DataError
from storage.importers.array_graph import ArrayGraph
from storage.links import Links
from storage.source import SPLITS
from storage.string_ids import StringIds, id_strings

INVERSE = "inverse of "  # before a relation's name
_COLUMNS = ("head", "relation", "tail")


def read_triples(folder: str | Path, scratch: str | None = None) -> ArrayGraph:
    """The graph of train.txt; the triples of valid.txt and test.txt, where there are any, are held out.

    Entities and relations are numbered as they come. Raises DataError with the file and the line for what is no triple. `scratch`: a folder for
    the entities' names; None: the system's.
    """
    folder, entities, relations = Path(folder), StringIds(scratch), StringIds(scratch)
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

    `num_nodes`: where there are no names. Raises DataError for a relation without a name, and a triple that both validates and tests.
    """
    count, parts = len(relations), {}
    for split, given in (("train", train), ("valid", valid), ("test", test)):
        if given is None:
            continue
        head, relation, tail = np.unique(np.asarray(given, np.int64), axis=1)
        if len(relation) and not 0 <= relation.min() <= relation.max() < count:
            raise DataError(
                f"{name}: {split}: expected relations 0 to {count - 1}, got {relation.min()} to {relation.max()}"
            )
        both = np.concatenate([head, tail]), np.concatenate([tail, head]), np.concatenate([relation, relation + count])
        parts[split] = both
    source, destination, number = parts.pop("train")
    links = None
    if parts:
        links = Links.join([Links.of(u, v, SPLITS[split], relation=r) for split, (u, v, r) in parts.items()])
        _check_apart(name, links)
    return ArrayGraph(
        name=name,
        num_nodes=len(entities) if entities is not None else num_nodes or 0,
        src=source,
        dst=destination,
        edge_feature=number[:, None],
        relations=(*relations, *(INVERSE + each for each in relations)),
        links=links,
        strings=entities,
        provenance={"triples": f"{len(source) // 2}, each as two edges"},
    )


def _check_apart(name: str, links: Links) -> None:
    """Raises DataError for a triple that validates and tests; one that trains too is refused by ingestion."""
    assert links.relation is not None
    columns = np.stack([links.source, links.relation, links.destination])
    _, place, repeats = np.unique(columns, axis=1, return_index=True, return_counts=True)
    if len(again := place[repeats > 1]):
        head, relation, tail = columns[:, again[0]]
        raise DataError(
            f"{name}: expected different triples in valid and test, found {head}, {relation}, {tail} in both; take them out of one"
        )


def _read(path: Path) -> list[pa.LargeStringArray]:
    """The three columns."""
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
    return [id_strings(table[name], lambda row: f"{path}: line {row + 1}", name) for name in _COLUMNS]
