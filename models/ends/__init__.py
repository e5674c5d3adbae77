"""Has the first and last modules of a model: encoders of feature columns, heads, and decoders of links. Imports: models.operators, .encodings and below."""
