"""The papers' released weights, renamed to ours. Imports: models.options."""
