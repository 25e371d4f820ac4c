"""What is said about memory, held against layers that run and forecasts that are made."""

import numpy as np
import pandas as pd
import pytest
import torch

from conca import LSTM, S4D, Attention
from conca.data.grid import DAY, Grid, ticks
from conca.estimators.forecaster import Forecaster
from conca.layers import families
from conca.layers.states import size_in_bytes
from conca.models.costs import costs
from conca.report.holds import grown
from conca.report.memory import StateSpace, forget_times, impulses, kernel, layers_of, periods, time_scales
from conca.report.response import Response, reach, response, standing, times_until, tried

SMALL = {"horizon": 6, "d_model": 8, "members": 2, "epochs": 1, "length": 48, "batch_size": 4}


def hourly(rows=300):
    hours = np.arange(rows)
    draw = np.random.default_rng(0)
    wave = 50 + 20 * np.sin(2 * np.pi * hours / 24) + draw.normal(size=rows)
    return pd.DataFrame(
        {"when": pd.date_range("2024-01-01", periods=rows, freq="h"), "load": wave, "heat": draw.normal(5, 2, rows)}
    )


@pytest.fixture(scope="module", params=["s4d", "lstm", "attention(n_heads=2)"])
def fitted(request):
    torch.set_default_dtype(torch.float32)
    model = Forecaster(layers=request.param, **SMALL)
    return model.fit(hourly(), target="load", time="when", refit=False, progress=False)


@torch.no_grad()
@pytest.mark.parametrize("init", ["legs", "lin"])
def test_a_kernel_is_what_the_layer_answers_to_an_impulse(init):
    layer = S4D(5, d_state=6, init=init)
    rows, width = 40, layer.d_model
    for channel in range(width):
        x = torch.zeros(1, rows, width)
        x[0, 0, channel] = 1.0
        state, heard = layer.init_state(1), []
        for token in x.unbind(1):
            _, state = layer.step(token, state)
            h = torch.view_as_complex(state.h_BDN2)[0, channel]
            heard.append(2 * float((torch.view_as_complex(layer.c)[channel] * h).sum().real))
        np.testing.assert_allclose(kernel(layer, [channel], rows)[0], heard, atol=1e-12)


SPACES = [name for name, cls in families().items() if isinstance(cls.samples()[0], StateSpace)]


def test_the_state_spaces_are_found_by_what_they_offer():
    assert {"s4", "s4d", "s5", "lssl"} <= set(SPACES)
    assert not isinstance(LSTM(2), StateSpace)


@torch.no_grad()
@pytest.mark.parametrize("name", SPACES)
def test_what_is_read_of_a_state_space_is_what_it_does(name):
    layer = families()[name](4, d_state=8)
    scales, turns = time_scales(layer), periods(layer)
    assert scales.shape == turns.shape and scales.shape[0] in (1, 4) and (scales > 0).all() and (turns > 0).all()
    line = kernel(layer, [0, 3], 600)
    assert line.shape == (2, 600) and np.isfinite(line).all()
    for channel in (0, 3):
        late = int(5 * scales[channel % len(scales)].max()) + 1
        row = np.abs(kernel(layer, [channel], 2 * late)[0])
        assert row[late:].max() < 0.05 * row[:late].max(), "after five of the slowest time scales little is left"
    drawn = impulses(layer, "layer 1", Grid())
    assert "<svg" in drawn.svg and "channels" in drawn.caption


def test_after_a_time_scale_e_to_the_minus_one_is_left():
    layer = S4D(3, d_state=4)
    with torch.no_grad():
        layer.log_dt.copy_(torch.tensor([0.02, 0.05, 0.1]).log())
        layer.log_decay.fill_(np.log(0.5))
    np.testing.assert_allclose(time_scales(layer), [[100.0] * 2, [40.0] * 2, [20.0] * 2])
    x = torch.zeros(1, 101, 3)
    x[:, 0] = 1.0
    first, last = (torch.view_as_complex(layer(x[:, :rows])[1].h_BDN2).abs()[0] for rows in (1, 101))
    torch.testing.assert_close(last / first, torch.exp(-100 / torch.as_tensor(time_scales(layer))))


def test_after_a_period_a_mode_points_where_it_pointed():
    layer = S4D(2, d_state=4)
    with torch.no_grad():
        layer.log_dt.fill_(np.log(0.1))
        layer.frequency.copy_(torch.tensor([[2 * np.pi / 0.8, 0.0], [2 * np.pi / 0.8, -2 * np.pi / 1.6]]))
    np.testing.assert_allclose(periods(layer), [[8.0, np.inf], [8.0, 16.0]])
    x = torch.zeros(1, 17, 2)
    x[:, 0] = 1.0
    first, last = (torch.view_as_complex(layer(x[:, :rows])[1].h_BDN2)[0] for rows in (1, 17))
    torch.testing.assert_close(last.angle(), first.angle(), atol=1e-8, rtol=0)


def test_a_cell_at_rest_loses_all_but_e_to_the_minus_one_in_its_forget_time():
    layer = LSTM(3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.core.bias_ih_l0[3:6] = torch.tensor([0.0, 1.0, 4.0])
        layer.core.bias_hh_l0[3:6] = 1.0
    state = layer.init_state(1)
    state.c_BD.fill_(1.0)
    _, after = layer.step(torch.zeros(1, 3), state)
    np.testing.assert_allclose(forget_times(layer), -1 / np.log(after.c_BD[0].detach().numpy()), rtol=1e-9)
    np.testing.assert_allclose(forget_times(LSTM(2, bias=False)), 1 / np.log(2))


def test_layers_are_found_wherever_they_stand(fitted):
    names = {kind: layers_of(fitted.network_.towers[0].stack, kind) for kind in (S4D, LSTM, Attention)}
    assert sum(map(len, names.values())) == 1
    assert next(iter(v[0][0] for v in names.values() if v)) == "layer 1"


def test_the_response_is_the_difference_of_two_forecasts_of_tables(fitted):
    found = response(fitted.fitted)
    still = standing(fitted.fitted, 384)
    table = pd.DataFrame({"when": still.times, "load": still.target[:, 0], "heat": still.numeric[:, 0]})
    base = fitted.predict(table)["q0.5"].to_numpy()
    assert found.steps.tolist() == [1, 3, 6]
    for place in (0, 3, len(found.lags) // 2, -1):
        bumped = table.copy()
        bumped.loc[len(table) - int(found.lags[place]), "load"] += found.bump
        moved = (fitted.predict(bumped)["q0.5"].to_numpy() - base) / found.bump
        np.testing.assert_allclose(found.value[:, place], moved[found.steps - 1], atol=1e-6)
    assert np.abs(found.value).max() > 0.1, "some row counts"


def test_a_series_that_stands_still_is_encoded_as_the_mean(fitted):
    still = standing(fitted.fitted, 50)
    encoded = fitted.fitted.encoding.encode(fitted.schema_, still)
    numbers = encoded.inputs[:, : 3 + 2]  # value, last value, missing; covariate, missing
    np.testing.assert_allclose(numbers, 0.0, atol=1e-6)
    assert still.times[-1] == hourly()["when"].iloc[-1].to_datetime64()


def test_lags_reach_from_the_last_row_to_the_first_and_meet_the_seasons():
    lags = tried(383, np.array([1, 12, 24]), (24, 168))
    assert lags[0] == 1 and lags[-1] == 383 and (np.diff(lags) > 0).all()
    # a forecast h steps ahead of c starts from the row L ceil(h / L) before c + h, which is so many rows before step 1
    assert {24, 13, 168, 157, 145, 25, 169} <= set(lags.tolist())
    assert tried(0, np.array([1]), ()).tolist() == [1]


def test_the_reach_is_the_farthest_lag_that_matters():
    lags, steps = np.array([1, 2, 10, 100]), np.array([1])
    assert reach(Response(lags, steps, np.array([[9.0, 1.0, -0.06, 0.04]]), 1.0)) == 10
    assert reach(Response(lags, steps, np.zeros((1, 4)), 1.0)) == 0
    assert reach(Response(lags[:1], steps, np.ones((1, 1)), 1.0)) == 0


@pytest.mark.parametrize(
    ("grid", "last", "first"),
    [
        (Grid("datetime", DAY), "2024-03-01", "2024-02-29"),
        (Grid("datetime", 30 * DAY, 1, True), "2024-03-31", "2024-02-01"),
        (Grid("datetime", 91 * DAY, 3), "2024-01-01", "2023-10-01"),
    ],
)
def test_times_go_back_from_the_last(grid, last, first):
    when = int(ticks(np.array([last], "datetime64[ns]"))[0])
    assert str(times_until(when, 2, grid)[0])[:10] == first


def test_times_do_not_go_back_before_they_can_be_counted():
    when = int(ticks(np.array(["1690-06-01"], "datetime64[ns]"))[0])
    yearly = times_until(when, 384, Grid("datetime", 365 * DAY, 12))
    assert str(yearly[0])[:4] == "1678" and len(yearly) == 13
    assert len(times_until(when, 384, Grid("datetime", 365 * DAY))) == 13
    assert times_until(7, 3, Grid("integer", 5)).tolist() == [-3, 2, 7]
    assert times_until(7, 3, Grid("integer", 2**62 - 1)).tolist() == [8 - 2**62, 7]


def test_what_the_state_holds_is_what_it_takes(fitted):
    network, rows = fitted.network_, costs(fitted.network_)
    stack = network.towers[0].stack
    assert rows[0].state == size_in_bytes(stack.init_state(1))
    assert rows[-1].grows is not stack.bounded
    assert rows[-1].parameters == sum(p.numel() for p in network.parameters())
    assert rows[-1].multiply_adds == len(network.towers) * sum(cost.multiply_adds for cost in rows[:-1])
    sizes = grown(network, (1, 8, 64))
    if stack.bounded:
        assert (sizes == rows[-1].state).all()
    else:
        assert (np.diff(sizes) == np.array([7, 56]) * 2 * 2 * 8 * 4).all(), (
            "a key and a value of 8 float32 a row and member"
        )
