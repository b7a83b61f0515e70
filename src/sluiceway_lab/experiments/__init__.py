"""Questions about streams, answered by measurement: each starts servers, measures, and says which hypotheses stood."""
