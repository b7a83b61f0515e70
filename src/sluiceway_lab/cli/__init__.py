"""The commands that the lab adds to `sluiceway`: bench, check, lab."""
