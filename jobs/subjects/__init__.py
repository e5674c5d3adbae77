"""What a run is about: the nodes of one graph, its links, many graphs. Imports: jobs.plan and the floors below it."""
