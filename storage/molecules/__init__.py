"""Makes sets of graphs from SMILES or from OGB's files of molecules. Imports: storage.graph_sets, storage.importers.files, .tables and what they import."""
