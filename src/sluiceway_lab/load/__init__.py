"""The instrument that the lab's measurements share: a cheap client, its workload, its statistics, its record."""
