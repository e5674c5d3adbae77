"""A run on nodes, on graphs, on the whole graph; the subject of a prediction. Imports: jobs.resolve and below."""
