"""Reads knowledge graphs: triples (head, relation, tail) in train.txt, valid.txt and test.txt. FB15k-237 and WN18RR are published in this form.

A line has three strings, separated by tabs. A triple becomes two edges: head to tail with relation r, and tail to head with the inverse relation
r + num_relations. So a link can be predicted from either end by its source and relation (Lacroix et al., ICML 2018, section 4), and samplers, which follow
in-edges, reach both ends.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.format.source import SPLITS
from graphmill.storage.format.stored_links import Links
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.tables.edge_list_options import TEXT_ENDINGS
from graphmill.storage.importers.tables.table_files import table_files
from graphmill.storage.ingestion.string_ids import StringIds, id_strings

INVERSE = "inverse of "  # prefix of the name of an inverse relation
_HEADERS = ([b"head", b"relation", b"tail"], [b"subject", b"predicate", b"object"], [b"h", b"r", b"t"])
_COLUMNS = ("head", "relation", "tail")


def read_triples(folder: str | Path, scratch: str | None = None, *, drop_repeated: bool = False) -> ArrayGraph:
    """Reads the graph in train.txt. The triples in valid.txt and test.txt, if these files exist, become held-out links.

    Files may be compressed. Fields are separated by tabs or, if the first line has no tab, by blanks. In OpenKE's form, entity2id.txt and relation2id.txt
    have a name and a number in each line, and train2id.txt … have the numbers of head, tail and relation. Otherwise entities and relations are numbered in
    the order of their appearance. `scratch`: a folder for the entities' names (None: the system's temporary folder). `drop_repeated`: see
    `knowledge_graph`. Raises DataError, with the file, for a line that is not a triple.
    """
    folder = Path(folder)
    entities, relations = _mapped(folder, "entity", scratch), _mapped(folder, "relation", scratch)
    if (entities is None) != (relations is None):
        raise DataError(
            f"{folder}: expected entity2id.txt and relation2id.txt, or neither, got one of them; add the other one"
        )
    by_number, ending = entities is not None, "" if entities is None else "2id"
    entities, relations = entities or StringIds(scratch), relations or StringIds(scratch)
    files = {split: _file(folder, split + ending) for split in SPLITS}
    held_out = [split for split in ("valid", "test") if files[split] is not None]
    if len(held_out) == 1:
        raise DataError(
            f"{folder}: expected valid.txt and test.txt, or neither, got {held_out[0]}.txt alone; add the other one"
        )
    parts: dict[str, Any] = {}
    for split, path in files.items():
        if path is None and split == "train":
            raise DataError(
                f"{folder / f'train{ending}.txt'}: expected a file of triples (head, relation, tail, between tabs), found none"
            )
        if path is not None and by_number:
            head, tail, relation = (
                column.cast(pa.int64()).to_numpy() for column in _read(path, skip=1, kind=pa.int64())
            )
            parts[split] = np.stack([head, relation, tail])
        elif path is not None:
            head, relation, tail = _read(path)
            parts[split] = np.stack([entities.add(head), relations.add(relation), entities.add(tail)])
    names = relations.strings.part(0, len(relations)).to_pylist() if len(relations) else []
    name = f"triples:{folder.resolve().name}"
    return knowledge_graph(name, names, **parts, entities=entities, drop_repeated=drop_repeated)


def _file(folder: Path, name: str) -> Path | None:
    """Returns the file with this name and any ending for text; None if there is none. Raises DataError if there are two."""
    files = [folder / (name + ending) for ending in TEXT_ENDINGS if (folder / (name + ending)).exists()]
    if len(files) > 1:
        raise DataError(f"{folder}: expected one file of {name}, found {files[0].name} and {files[1].name}; remove one")
    return files[0] if files else None


def _mapped(folder: Path, noun: str, scratch: str | None) -> StringIds | None:
    """Reads the names in entity2id.txt or relation2id.txt, by number; None without the file. Raises DataError unless the numbers are 0, 1, 2 …, each once."""
    if (path := _file(folder, f"{noun}2id")) is None:
        return None
    table = _table(path, ("name", "id"), skip=1)
    names, numbers = id_strings(table["name"], lambda row: f"{path}: line {row + 2}", "name"), table["id"]
    try:
        order = np.argsort(ids := numbers.cast(pa.int64()).to_numpy())
    except pa.ArrowException as error:
        raise DataError(f"{path}: expected a name and a number in each line: {one_line(error)}") from error
    mapped = StringIds(scratch)
    is_whole = np.array_equal(ids[order], np.arange(len(ids)))
    if not is_whole or len(np.unique(mapped.add(names.take(pa.array(order))))) < len(ids):
        raise DataError(f"{path}: expected numbers 0 to {len(ids) - 1} and different names, each once; got others")
    return mapped


def knowledge_graph(
    name: str,
    relations: Sequence[str],
    train: np.ndarray,
    valid: np.ndarray | None = None,
    test: np.ndarray | None = None,
    *,
    num_nodes: int | None = None,
    entities: StringIds | None = None,
    drop_repeated: bool = False,
) -> ArrayGraph:
    """Makes the graph of triples that are numbers: int64 [3, m] of heads, relations, tails. A triple that occurs several times in one part counts once.

    `num_nodes` is needed if `entities` is not given. A triple that occurs in two parts is kept in both or, with `drop_repeated`, only in the last part. The
    provenance has the number of such triples. Raises DataError for arrays that are not triples, and for a relation without a name.
    """
    count, parts = len(relations), {}
    names = (*relations, *(INVERSE + each for each in relations))
    for split, rows in (("train", train), ("valid", valid), ("test", test)):
        if rows is None:
            continue
        triples = np.asarray(rows)
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
    repeated = _repeated(parts, drop=drop_repeated)
    provenance = {}
    if repeated:
        fate = "left in the later one" if drop_repeated else "kept in both"
        provenance["triples_in_two_splits"] = f"{repeated}, {fate}"
    known = np.unique(parts["train"][[0, 2]])
    held = [part[[0, 2]].ravel() for split, part in parts.items() if split != "train"]
    if unseen := len(np.setdiff1d(np.concatenate([known, *held]), known)):
        provenance["entities_of_no_training_triple"] = str(unseen)
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
        repeats_links=bool(repeated),
        provenance={"triples": f"{len(source) // 2}, each as two edges", **provenance},
    )


def _both_ways(triples: np.ndarray, num_relations: int) -> np.ndarray:
    """Returns sources, relations and destinations of the triples and of their inverses, int64 [3, 2m]."""
    head, relation, tail = triples
    return np.concatenate([triples, np.stack([tail, relation + num_relations, head])], axis=1)


def _repeated(parts: dict[str, np.ndarray], *, drop: bool) -> int:
    """Counts the triples that occur in two parts. With `drop`, keeps them only in the last of the parts, so that no evaluated triple is used in training."""
    count = 0
    splits = list(parts)
    for place, split in enumerate(splits):
        later = [parts[other] for other in splits[place + 1 :]]
        own = parts[split]
        rows = np.concatenate([own, *later], axis=1)
        _, inverse = np.unique(rows, axis=1, return_inverse=True)
        again = np.isin(inverse.ravel()[: own.shape[1]], inverse.ravel()[own.shape[1] :])
        count += int(again.sum())
        if drop:
            parts[split] = own[:, ~again]
    return count


def _read(path: Path, skip: int = 0, kind: pa.DataType | None = None) -> list[pa.Array]:
    """Reads the three columns, in the order of the file, with this type. None: strings, none of which may be empty."""
    table = _table(path, _COLUMNS, skip)
    try:
        if kind is not None:
            return [table[name].cast(kind).combine_chunks() for name in _COLUMNS]
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: expected a head, a tail and a relation by their numbers: {one_line(error)}"
        ) from error
    return [id_strings(table[name], lambda row: f"{path}: triple {row + 1}", name) for name in _COLUMNS]


def _table(path: Path, names: Sequence[str], skip: int = 0) -> pa.Table:
    """Reads columns of text that are separated by tabs, or by blanks if the first line has no tab. Skips the first `skip` lines, such as a count."""
    (file,) = table_files(path)
    with file.opened() as stream:
        text = stream.read()
    lines = text.split(b"\n", skip)
    text = lines[skip].strip(b"\r\n") if len(lines) > skip else b""
    if not text:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    if text.split(b"\n", 1)[0].lower().split() in _HEADERS:
        raise DataError(f"{path}: line 1: expected a triple, found names of columns; take that line out")
    if b"\t" not in text.split(b"\n", 1)[0]:
        text = re.sub(rb" +", b"\t", text)
    try:
        return pa_csv.read_csv(
            pa.BufferReader(text),
            pa_csv.ReadOptions(column_names=list(names)),
            pa_csv.ParseOptions(delimiter="\t", quote_char=False),
            pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: expected {', '.join(names[:-1])} and {names[-1]}, between tabs or blanks, in each line: {one_line(error)[:200]}"
        ) from error
