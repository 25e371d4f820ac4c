"""Fit and predict in one object, data frames in and out."""
