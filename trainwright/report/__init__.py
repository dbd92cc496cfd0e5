"""What a run directory tells: lists and comparisons of runs, and a report of each. Reads files, never the process."""
