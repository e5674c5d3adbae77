"""Columns of tables: their roles by name, their values as arrays, and what is learnt of them."""
