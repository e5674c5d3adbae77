"""Molecules from SMILES and from OGB's files, as sets of graphs. Imports: storage.graph_sets, storage.importers.files, .tables and what they import."""
