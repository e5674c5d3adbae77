"""Executes, follows, plans and reports runs of any kind; writes the files of a prediction. Imports: jobs.subjects and the packages below it."""
