"""Runs fitted models: forecasts from every row of a series or from its end."""
