"""What a fitted forecaster is: all that is needed to go on from it."""

from __future__ import annotations

from dataclasses import dataclass

from conca.data.encoding import Encoding
from conca.data.schema import Schema
from conca.infer.frame import Ends
from conca.models.forecast import ForecastNetwork

__all__ = ["Fitted"]


@dataclass(frozen=True)
class Fitted:
    """What a fitted forecaster knows.

    schema    what the columns of the table mean
    encoding  how rows become the inputs of the network
    network   in `eval()`
    ends      the ends of the fitted series, and the forecasts from them
    context   rows that a network whose state grows reads for a forecast
    """

    schema: Schema
    encoding: Encoding
    network: ForecastNetwork
    ends: Ends
    context: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a forecast that hold the quantiles, such as q0.1."""
        return tuple(f"q{level:g}" for level in self.network.config.levels)
