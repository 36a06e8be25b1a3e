"""Whether a job can run here, and how well: this machine alone, or all hosts of a launch."""
