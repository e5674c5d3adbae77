"""Proves what a run claims: reads its receipt, replays its steps, and finds where two runs part. Imports the rooms below `jobs/run` and `jobs/run` itself."""
