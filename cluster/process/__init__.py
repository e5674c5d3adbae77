"""One process: signals, outcomes, failure budgets, memory. Imports: core."""
