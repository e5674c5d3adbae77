"""Has models for typed graphs: options and networks."""
