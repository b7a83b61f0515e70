"""What the processes share: loops, heartbeats, worker processes, the listening socket."""
