"""Runs sweeps: trials, search, scaling, and the tables of results. Imports: jobs.plan and below."""
