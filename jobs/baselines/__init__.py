"""Computes the baselines of a run: a model that sees only features, tuned message-passing models, link heuristics. Imports: jobs.config and below."""
