"""Baselines of a run: features only, tuned message passing, link heuristics. Imports: jobs.config and its floor."""
