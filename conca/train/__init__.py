"""Learns: pieces of series, parameter groups, and the training of forecasters through Lightning."""
