"""The supervisor: the process that starts the others, holds the listening socket, and ends them."""
