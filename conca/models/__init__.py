"""Layers put together, and to disk and back."""
