"""The subject of a run: the nodes of one graph, its links, or many graphs. Imports: jobs.plan and the floors below it."""
