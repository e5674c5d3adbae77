"""Tools within one process: signals, outcomes, answers of remote calls, failure budgets, memory. Imports: core."""
