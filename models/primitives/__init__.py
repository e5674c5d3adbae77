"""Has sums over segments, norms, dropout by position, propagation, and the class Graphs, the input of a model. Imports: models.options."""
