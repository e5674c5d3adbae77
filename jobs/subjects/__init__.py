"""The classes for the subject of a run: the nodes of one graph, the links of one graph, or many graphs. Imports: jobs.plan and below."""
