"""What the processes share: loops, heartbeats, pools of worker processes."""
