"""Decides a run before anything starts, and checks options that need the data. Imports: jobs.tasks and the packages below it."""
