"""One process: signals, outcomes, answers of remote calls, failure budgets, memory. Imports: core."""
