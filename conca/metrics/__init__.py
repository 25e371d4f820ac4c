"""How good a forecast is, and what the simplest forecasts reach. Arrays in, numbers out."""
