"""Pages with pictures: what a run learned, how well, and what it remembers, in one file that needs nothing else."""
