"""Has comparisons for developers only; they are not in the wheel. Users run `graphmill bench`."""
