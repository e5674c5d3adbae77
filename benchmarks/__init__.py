"""Comparisons that only developers run; not in the wheel. Users have `graphmill bench`."""
