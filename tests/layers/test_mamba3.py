"""Mamba-3: the recurrence by another route, limits, initialisation, extremes."""

import math

import pytest
import torch
import torch.nn.functional as F

from conca.layers.mamba3 import Decay, Mamba3, Rotation
from conca.ops.duality import duality_quadratic
from conca.ops.trapezoid import trapezoid_recurrence

SHAPES = [
    {},
    {"rank": 2},
    {"rank": 3, "n_groups": 2, "norm": True},
    {"rotation": {"pairing": "halves", "fraction": 1.0}, "decay": {"activation": "softplus"}},
    {"rank": 2, "rotation": {"pairing": "neighbours"}, "decay": {"floor": 0.5}},
    {"d_state": 7, "d_head": 3},
]


def built(**options):
    """A small layer whose parameters are all far from where they start."""
    layer = Mamba3(6, **{"d_state": 8, "d_head": 3} | options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


def turn(vector, angle, pairing):
    """A vector with its pairs turned, one by one."""
    out, N = vector.clone(), len(vector)
    for i, w in enumerate(angle):
        a, b = (2 * i, 2 * i + 1) if pairing == "neighbours" else (i, i + N // 2)
        out[a] = vector[a] * torch.cos(w) - vector[b] * torch.sin(w)
        out[b] = vector[a] * torch.sin(w) + vector[b] * torch.cos(w)
    return out


def normed(v, weight=1.0):
    return v / torch.sqrt((v * v).mean() + 1e-5) * weight


def reference(m, tokens):
    """One row (T, D) from the empty state, head by head and number by number: outputs, angles, memory, last keys."""
    H, P, N, R, G, E = m.n_heads, m.d_head, m.d_state, m.rank, m.n_groups, m.d_inner
    pairing = m.rotation.pairing or ("neighbours" if R == 1 else "halves")
    S_count = int(N * m.rotation.fraction) // 2
    cuts = torch.tensor([E, E, N * G * R, N * G * R, H, H, H]).cumsum(0).tolist()
    theta, S = torch.zeros(H, S_count), torch.zeros(H, P, N)
    k, x = torch.zeros(R, H, N), torch.zeros(H, P)
    one = torch.ones(H, R, P)
    mx, mz, mo = (m.mimo_x, m.mimo_z, m.mimo_o) if R > 1 else (one, one, one)
    outputs = []
    for token in tokens:
        z, xs, B, C, dts, As, traps, rates = (m.in_proj.weight @ token).tensor_split(cuts)
        inner = torch.zeros(H, P)
        new_k, new_x, new_S, new_theta = k.clone(), x.clone(), S.clone(), theta.clone()
        for h in range(H):
            g, a = h * G // H, As[h]
            f = F.softplus(a) if m.decay.activation == "softplus" else (1 + a if a >= 0 else 1 / (1 - a))
            A = torch.minimum(-f, torch.tensor(-m.decay.floor))
            dt, lam = torch.log1p(torch.exp(dts[h] + m.dt_bias[h])), 1 / (1 + torch.exp(-traps[h]))
            alpha = torch.exp(A * dt)
            new_theta[h] = theta[h] + dt * math.pi * torch.tanh(rates)
            new_x[h] = xs[h * P : h * P + P]
            new_S[h], queries = alpha * S[h], []
            for r in range(R):
                at = (r * G + g) * N
                key = normed(B[at : at + N], m.B_norm.weight) + m.B_bias[h, r]
                query = normed(C[at : at + N], m.C_norm.weight) + m.C_bias[h, r]
                new_k[r, h] = turn(key, new_theta[h], pairing)
                queries.append(turn(query, new_theta[h], pairing))
                new_S[h] += (1 - lam) * dt * alpha * torch.outer(x[h] * mx[h, r], k[r, h])
                new_S[h] += lam * dt * torch.outer(new_x[h] * mx[h, r], new_k[r, h])
            for r in range(R):
                y = new_S[h] @ queries[r] + m.D[h] * new_x[h] * mx[h, r]
                if m.norm is not None:
                    y = normed(y, m.norm.weight[h * P : h * P + P])
                gate = z[h * P : h * P + P] * mz[h, r]
                inner[h] += mo[h, r] * y * gate / (1 + torch.exp(-gate))
        k, x, S, theta = new_k, new_x, new_S, new_theta
        outputs.append(m.out_proj.weight @ inner.flatten())
    return torch.stack(outputs), theta, S, k, x


@pytest.mark.parametrize("options", SHAPES)
def test_it_is_the_published_recurrence(options):
    layer = built(**options)
    x = torch.randn(2, 9, 6)
    for form in (layer, layer.recurrent):
        y, state = form(x)
        for b in range(2):
            expected, theta, S, k, last = reference(layer, x[b])
            torch.testing.assert_close(y[b], expected, atol=1e-11, rtol=1e-10)
            torch.testing.assert_close(state.S_BHNP[b].mT, S, atol=1e-11, rtol=1e-10)
            torch.testing.assert_close(state.k_BRHN[b], k, atol=1e-11, rtol=1e-10)
            torch.testing.assert_close(state.x_BHP[b], last)
            torch.testing.assert_close(state.angle_BHS[b], theta.remainder(2 * math.pi), atol=1e-11, rtol=1e-10)


def test_a_pass_may_begin_anywhere_and_forgets_where_a_sequence_starts():
    layer = built(rank=2)
    x = torch.randn(1, 11, 6)
    starts = torch.zeros(1, 11, dtype=torch.bool)
    starts[0, 4] = starts[0, 5] = True
    y, state = layer(x, layer(torch.randn(1, 3, 6))[1], starts=starts)
    for begin, end in ((4, 5), (5, 11)):
        expected, theta, S, *_ = reference(layer, x[0, begin:end])
        torch.testing.assert_close(y[0, begin:end], expected)
    torch.testing.assert_close(state.S_BHNP[0].mT, S)
    torch.testing.assert_close(state.angle_BHS[0], theta.remainder(2 * math.pi))


def steady(layer, name, value):
    """Rows of `in_proj` that read `value` from a token whose first channel is 1."""
    names = "z", "x", "B", "C", "dt", "A", "trap", "angle"
    rows = layer.in_proj.weight.split(layer.widths)[names.index(name)]
    rows.zero_()
    rows[:, 0] = value


@torch.no_grad()
def test_all_weight_on_the_present_and_no_angles_are_masked_attention():
    layer = built(d_state=4)
    steady(layer, "trap", 60.0)
    steady(layer, "angle", 0.0)
    x = torch.randn(2, 12, 6)
    x[..., 0] = 1
    z, v, k, q, dt, A, _, _ = layer.in_proj(x).split(layer.widths, -1)
    dt = F.softplus(dt + layer.dt_bias)
    keys = (
        norm(t)[:, :, None] + b[:, 0]
        for t, norm, b in ((q, layer.C_norm, layer.C_bias), (k, layer.B_norm, layer.B_bias))
    )
    v = v.unflatten(-1, (layer.n_heads, -1))
    q, k, written = (t[:, :, None] for t in (*keys, v * dt[..., None]))
    y, S = duality_quadratic(q, k, written, layer.decay.of(A) * dt, torch.zeros(2, layer.n_heads, 4, 3))
    expected = layer.out_proj((y[:, :, 0] + layer.D[:, None] * v).flatten(-2) * F.silu(z))
    got, state = layer(x)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(state.S_BHNP, S)


@torch.no_grad()
def test_a_rank_that_is_never_heard_leaves_rank_one():
    one = built(rotation={"pairing": "halves"})
    two = built(rank=2)
    for name, parameter in one.state_dict().items():
        if name in ("B_bias", "C_bias"):
            two.get_parameter(name)[:, :1] = parameter
        elif name != "in_proj.weight":
            two.get_parameter(name).copy_(parameter)
    for ours, theirs, size in zip(
        two.in_proj.weight.split(two.widths), one.in_proj.weight.split(one.widths), one.widths
    ):
        ours[:size] = theirs
    for parameter in (two.mimo_x, two.mimo_z, two.mimo_o):
        parameter[:, 0] = 1
    two.mimo_x[:, 1] = two.mimo_o[:, 1] = 0
    x = torch.randn(2, 9, 6)
    torch.testing.assert_close(two(x)[0], one(x)[0])


def test_a_constant_input_follows_the_trapezoid():
    """Without decay and rotation S is the sum of (1 - l) dt f(t - 1) + l dt f(t): at l = 1/2 the rule of the name."""
    k, late, now = torch.ones(1, 40, 1, 1, 1), torch.full((1, 40, 1), 0.05), torch.full((1, 40, 1), 0.05)
    v = (torch.arange(1, 41) * 0.1).square().view(1, 40, 1, 1, 1)
    zero = torch.zeros(1, 1, 1, 1)
    y, _ = trapezoid_recurrence(k, k, v, torch.zeros(1, 40, 1), late, now, zero, zero + 1, zero)
    assert y[0, -1].item() == pytest.approx(torch.trapezoid(torch.cat([torch.zeros(1), v.flatten()]), dx=0.1).item())


def test_activations_of_the_decay():
    x = torch.tensor([-1e9, -3.0, -1.0, 0.0, 2.0], requires_grad=True)
    A = Decay().of(x)
    torch.testing.assert_close(A, torch.tensor([-1e-4, -0.25, -0.5, -1.0, -3.0]))
    (slope,) = torch.autograd.grad(A.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([0, -1 / 16, -0.25, -1, -1]))
    torch.testing.assert_close(Decay("softplus", floor=0.1).of(x), -F.softplus(x).clamp(min=0.1))


def test_initialisation():
    torch.manual_seed(1)
    layer = Mamba3(64, d_head=2, rank=4, decay=Decay(dt=(1e-5, 1e-2), dt_floor=1e-3))
    dt = F.softplus(layer.dt_bias.detach())
    assert dt.min() == pytest.approx(1e-3)
    assert 5e-3 < dt.max() <= 1e-2 + 1e-9
    for name, value in {"D": 1, "B_bias": 1, "C_bias": 1, "mimo_x": 0.25, "mimo_z": 1, "mimo_o": 0.25}.items():
        assert (layer.get_parameter(name) == value).all()


def test_the_published_shapes():
    """state-spaces/mamba3-mimo-1.5b: names and shapes of a mixer, and the four parts of its state."""
    layer = Mamba3(2048, rank=4, device="meta")
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "in_proj.weight": (2 * 4096 + 2 * 128 * 4 + 3 * 64 + 32, 2048),
        "out_proj.weight": (2048, 4096),
        "dt_bias": (64,),
        "D": (64,),
        "B_norm.weight": (128,),
        "C_norm.weight": (128,),
        "B_bias": (64, 4, 128),
        "C_bias": (64, 4, 128),
        "mimo_x": (64, 4, 64),
        "mimo_z": (64, 4, 64),
        "mimo_o": (64, 4, 64),
    }
    assert layer.pairing == "halves"
    assert Mamba3(768, device="meta").pairing == "neighbours"
    sizes = [tuple(leaf.shape) for leaf in layer.init_state(2)]
    assert sizes == [(2, 64, 32), (2, 64, 128, 64), (2, 4, 64, 128), (2, 64, 64)]
    assert tuple(Mamba3(768, norm=True, device="meta").norm.weight.shape) == (1536,)


@pytest.mark.parametrize("bias", [-14.0, 1e3])  # dt about 1e-6, and 1e3
@pytest.mark.parametrize("activation", ["heavy-tail", "softplus"])
def test_extreme_steps_stay_finite_and_agree(bias, activation):
    layer = Mamba3(6, d_state=8, d_head=4, rank=2, decay={"activation": activation}).float()
    with torch.no_grad():
        layer.dt_bias.fill_(bias)
    x = (10 * torch.randn(2, 200, 6)).float().requires_grad_()
    y, state = layer(x)
    y.square().mean().backward()
    with torch.no_grad():
        expected, last = layer.recurrent(x)
    scale = expected.abs().max()
    torch.testing.assert_close(y / scale, expected / scale, atol=1e-4, rtol=1e-3)
    assert all(torch.isfinite(leaf).all() for leaf in (*state, *last, x.grad))
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@torch.no_grad()
def test_long_rows_in_float32():
    layer = Mamba3(2, d_state=4, d_head=2, dtype=torch.float32)
    x = torch.randn(1, 100_000, 2, dtype=torch.float32)
    y, state = layer(x)
    assert torch.isfinite(y).all()
    exact, expected = layer.double()(x.double())
    turn = (state.angle_BHS - expected.angle_BHS + math.pi).remainder(2 * math.pi) - math.pi
    assert turn.abs().max() < 1e-3
    torch.testing.assert_close(y[:, -100:].double(), exact[:, -100:], atol=1e-3, rtol=1e-2)


def test_bfloat16_is_never_nan():
    for options in ({"rank": 2, "norm": True}, {}):
        layer = built(**options).float().bfloat16()
        x = (30 * torch.randn(2, 300, 6)).bfloat16().requires_grad_()
        y, state = layer(x)
        y.float().square().mean().backward()
        assert y.dtype == torch.bfloat16
        assert all(torch.isfinite(t).all() for t in (y, x.grad, *state, *(p.grad for p in layer.parameters())))
        assert state.S_BHNP.dtype == torch.float32


@pytest.mark.parametrize("d_state", [1, 2, 3])
def test_few_channels_have_few_angles(d_state):
    layer = built(d_state=d_state, rotation=Rotation(fraction=1.0))
    assert layer.n_angles == d_state // 2
    x = torch.randn(2, 7, 6)
    torch.testing.assert_close(layer(x)[0], layer.recurrent(x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_head": 5}, r"d_head 5 does not divide expand \* d_model = 16; 4 does"),
        ({"d_head": 4, "n_groups": 3}, "n_groups 3 does not divide the 4 heads; 2 does"),
        ({"norm": "rms"}, "norm must be True or False, got 'rms'"),
        ({"rank": 0}, "rank must be a whole number from 1 on, got 0"),
        ({"expand": 1.5}, "expand must be a whole number"),
        ({"rotation": {"pairing": "halfs"}}, "did you mean 'halves'"),
        ({"rotation": {"fraction": 0.3}}, "0.5 or 1.0"),
        ({"rotation": {"pair": "halves"}}, "did you mean 'pairing'"),
        ({"rotation": 0.5}, "a Rotation or a dict"),
        ({"decay": {"activation": "heavy"}}, "did you mean 'heavy-tail'"),
        ({"decay": {"floor": 0}}, "floor must be positive"),
        ({"decay": {"dt": (1e-1, 1e-3)}}, "in order"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Mamba3(8, **options)


def test_a_state_of_another_size_is_refused():
    layer = Mamba3(8, d_state=4)
    wrong = layer.init_state(1)._replace(k_BRHN=torch.zeros(1, 2, 1, 4))
    with pytest.raises(ValueError, match=r"k_BRHN of shape \(batch, 1, 1, 4\)"):
        layer(torch.zeros(1, 3, 8), wrong)
