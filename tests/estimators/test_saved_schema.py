"""The schema of a saved run is believed only if there can be such a table."""

import pytest

from conca.data.grid import Grid
from conca.data.schema import Schema
from conca.estimators.saved import check_schema
from conca.types import BadInput

DAY = 86_400 * 10**9
LOCAL = Grid("datetime", DAY, zone="Europe/Rome", wall=True, local=True)


@pytest.mark.parametrize("form", [None, "ISO8601", "%d/%m/%Y %H:%M"])
def test_a_schema_as_it_was_saved(form):
    schema = Schema(("y",), "t", numeric=("x",), grid=LOCAL, format=form, known=("x",))
    check_schema(
        schema,
        schema.as_dict()
        | {"target": ["y"], "series": [], "numeric": ["x"], "categorical": [], "levels": [], "known": ["x"]},
    )


@pytest.mark.parametrize(
    "schema",
    [
        Schema(("y",), "t", grid=Grid("datetime", DAY, local=True)),
        Schema(("y",), "t", grid=Grid("datetime", DAY, zone="UTC", local=1)),
        Schema(("y",), "t", grid=Grid("integer", 1, zone="UTC", local=True)),
        Schema(("y",), "t", grid=LOCAL, format=5),
        Schema(("y",), "t", grid=LOCAL, format="%Q"),
    ],
)
def test_a_schema_that_there_cannot_be(schema):
    with pytest.raises(BadInput, match="the run is damaged"):
        check_schema(schema, {})
