"""Metrics and the lifecycle log; fed with facts by the shells."""
