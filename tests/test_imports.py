"""There are no circular imports, even if imports for type checking and imports inside functions count."""

import grimp
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    modules = sorted(graph.modules)
    number = {module: index for index, module in enumerate(modules)}
    edges = [(number[a], number[b]) for a in modules for b in graph.find_modules_directly_imported_by(a)]
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    matrix = csr_array((np.ones(len(edges)), (source, target)), shape=(len(modules), len(modules)))
    _, component = connected_components(matrix, connection="strong")
    joined = np.flatnonzero(np.bincount(component) > 1)
    return [[module for module in modules if component[number[module]] == each] for each in joined]


def test_there_are_no_circles():
    assert circles(grimp.build_graph("graphmill")) == []


def test_a_circle_is_seen():
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [["b", "c"]]
