"""What a saved forecaster must fulfil before it is believed: its parts fit each other."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from conca.data.calendar import turns
from conca.data.encoding import Encoding
from conca.data.panel import Grid, Schema
from conca.data.times import restore
from conca.estimators.config import ForecastConfig
from conca.estimators.run_files import damaged
from conca.infer.frame import Ends
from conca.models.forecast import NetworkConfig
from conca.models.structural import Structure
from conca.models.words import structure_options
from conca.types import BadInput

__all__ = ["check_parts", "check_schema", "network_config"]


def network_config(config: ForecastConfig, schema: Schema, encoding: Encoding) -> NetworkConfig:
    """The network that belongs to options and a table.

    Raises BadInput for a pattern that names a structural forecaster and something else.
    """
    structure, options = None, structure_options(config.layers)
    if options is not None:
        structure = Structure(
            turns=turns(encoding.cycles, schema.grid),
            numbers=len(schema.numeric),
            known_numbers=schema.known_numeric,
            known_categories=schema.known_categorical,
            **options,
        )
    return NetworkConfig(
        layers=config.layers,
        d_model=config.d_model if structure is None else 2 * config.horizon * len(schema.target),
        horizon=config.horizon,
        inputs=encoding.inputs(schema),
        categories=schema.cardinalities,
        levels=config.quantiles,
        bends=encoding.bends,
        means=encoding.scaler.mean,
        scales=encoding.scaler.scale,
        members=config.members,
        dropout=config.dropout,
        known=encoding.known_inputs(schema),
        structure=structure,
    )


def check_parts(config: ForecastConfig, schema: Schema, encoding: Encoding, network: NetworkConfig, ends: Ends) -> None:
    """Raise BadInput unless the parts of a saved forecaster fit each other."""
    targets, numbers = len(schema.target), len(schema.numeric)
    for name, count in (("bends", targets), ("covariate_bends", numbers)):
        values = getattr(encoding, name)
        damaged(len(values) == count, f"encoding.{name} must hold {count} numbers")
        damaged(all(0 <= v < math.inf for v in values), f"encoding.{name} must be finite and not negative")
    scalers = (("scaler", encoding.scaler), ("pooled", encoding.pooled), *(("own", one) for one in encoding.own))
    for name, scaler in scalers:
        damaged(len(scaler.mean) == targets, f"encoding.{name} must be of {targets} targets")
    damaged(len(encoding.covariates.mean) == numbers, f"encoding.covariates must be of {numbers} columns")
    expected = network_config(config, schema, encoding)
    for field in fields(NetworkConfig):
        found, needed = getattr(network, field.name), getattr(expected, field.name)
        damaged(found == needed, f"network.{field.name} is {found!r}, and the other parts ask for {needed!r}")
    dated = (schema.grid.kind == "datetime") == (ends.kind == "datetime")
    damaged(dated, f"latest.kind is '{ends.kind}', schema.grid.kind is '{schema.grid.kind}'")
    shape = (len(ends.keys), config.horizon, targets, len(config.quantiles))
    damaged(ends.quantiles.shape == shape, f"latest.safetensors must have the shape {shape}")
    keys = tuple(tuple(map(str, key)) for key in ends.keys)
    damaged(keys == encoding.keys, "latest.keys and encoding.keys differ")
    damaged(all(len(key) == len(schema.series) for key in keys), "latest.keys and schema.series differ in length")


def check_schema(schema: Schema, saved: dict[str, Any]) -> None:
    """Raise BadInput unless a schema is what was saved and describes a table that there can be."""
    own = json.loads(json.dumps(schema.as_dict()))
    for key, value in saved.items():
        damaged(own[key] == value, f"schema.{key} is {value!r}")
    names = [name for name in schema.columns if not isinstance(name, str)]
    damaged(not names, f"schema: {names[:1]} is no name of a column")
    damaged(len(set(schema.columns)) == len(schema.columns), "schema: a column stands there twice")
    for levels in schema.levels:
        texts = all(isinstance(level, str) for level in levels)
        damaged(texts and len(set(levels)) == len(levels), "schema.levels must be different texts")
    check_grid(schema.grid)
    check_format(schema.format)
    damaged((schema.grid.kind == "row") == (schema.time is None), "schema.time and schema.grid.kind do not fit")


def check_format(format: Any) -> None:
    """Raise BadInput unless times can be read in this format."""
    damaged(format is None or isinstance(format, str), f"schema.format is {format!r}")
    try:
        pd.to_datetime(["1"], format=format or "ISO8601", errors="coerce")
    except (TypeError, ValueError):
        raise BadInput(f"the run is damaged: schema.format is {format!r}") from None


def check_grid(grid: Grid) -> None:
    """Raise BadInput unless a grid is one that there can be."""
    for name, least, most in (("step", 1, 2**62), ("months", 0, 2**15)):
        value = getattr(grid, name)
        damaged(type(value) is int and least <= value < most, f"schema.grid.{name} is {value!r}")
    for name in ("ends", "regular", "wall", "local"):
        damaged(type(getattr(grid, name)) is bool, f"schema.grid.{name} is neither true nor false")
    damaged(grid.zone is None or isinstance(grid.zone, str), f"schema.grid.zone is {grid.zone!r}")
    damaged(not (grid.wall or grid.local) or grid.zone is not None, "schema.grid.wall and local need a zone")
    dated = grid.kind == "datetime"
    damaged(
        dated or (grid.zone is None and not grid.months), "schema.grid: without dates there are no months and zones"
    )
    try:
        restore(np.array([0], "datetime64[ns]" if dated else np.int64), grid)
    except (KeyError, OSError, TypeError, ValueError, AttributeError):
        raise BadInput(f"the run is damaged, or made elsewhere: there is no time zone {grid.zone!r}") from None
