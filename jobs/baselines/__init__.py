"""What a run is compared with: features only, tuned message passing, link heuristics. Imports: jobs.config and its floor."""
