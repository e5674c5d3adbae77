"""Comparisons that only developers run; not in the wheel. What users measure is `graphmill bench`."""
