"""Experiments that users run too: what the theory says, measured on this machine."""
