"""The command line: `conca fit | predict | check | info`, thin callers of what Python offers."""
