"""Flows that make datapoints from those of other flows."""
