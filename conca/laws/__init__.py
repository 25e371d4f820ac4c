"""The laws, and their runner: what every mixer and every energy must obey."""
