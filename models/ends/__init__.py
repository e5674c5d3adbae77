"""The ends of a model: encoders of columns, heads, decoders of links. Imports: models.operators, .encodings and below."""
