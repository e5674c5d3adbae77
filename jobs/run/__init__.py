"""Executes, follows and reports a run of any kind; prints the plan of a run; writes the files of a prediction. Imports: jobs.subjects and the packages below
it."""
