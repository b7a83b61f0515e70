"""Experiments about streams. Each starts servers, measures them, and says which of its hypotheses held."""
