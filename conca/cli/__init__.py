"""The command line: `conca fit | predict | stream | score | report | info | check | tour | data`, thin callers of what Python offers."""
