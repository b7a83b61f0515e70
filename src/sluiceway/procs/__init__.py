"""The shells: loops, sockets and signals, and nothing else."""
