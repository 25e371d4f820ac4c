"""What is learnt from: a function of the seed and the step, and never a row that is held out."""

import numpy as np
import pytest
import torch

from conca.data.encoding import Encoded
from conca.train import pieces as module
from conca.train.pieces import Batch, Pieces, windows


def series(rows, start=0, targets=1):
    """Inputs and targets that say which row they are."""
    at = np.arange(start, start + rows, dtype=np.float32)[:, None]
    return Encoded(
        inputs=at.repeat(2, 1),
        codes=np.zeros((rows, 1), np.int64),
        anchor=at.repeat(targets, 1)[:, None],
        target=at.repeat(targets, 1),
        elapsed=None,
        origin=np.zeros(targets),
        unit=np.full(targets, 2.0),
    )


def pieces(train=(40, 12, 3), **changes):
    options = {"horizon": 4, "length": 10, "batch_size": 6, "seed": 0} | changes
    return Pieces([series(50), series(20, 100), series(5, 200)], train, **options)


def alike(a: Batch, b: Batch) -> bool:
    return all((x is None and y is None) or torch.equal(x.nan_to_num(-1), y.nan_to_num(-1)) for x, y in zip(a, b))


def test_a_batch_is_a_function_of_seed_and_step():
    one, two = pieces(), pieces()
    _ = [one[step] for step in range(5)]
    assert alike(one[7], two[7])
    assert not alike(one[7], one[8])
    assert not alike(one[7], pieces(seed=1)[7])


def test_targets_are_the_rows_ahead_up_to_the_end_of_training():
    ends = {0: 40, 100: 112, 200: 203}
    for step in range(30):
        batch = pieces()[step]
        lengths = batch.lengths if batch.lengths is not None else torch.full((6,), batch.inputs.shape[1])
        for b, size in enumerate(lengths.tolist()):
            for t in range(size):
                row = float(batch.inputs[b, t, 0])
                end = next(end for start, end in ends.items() if start <= row < start + 100)
                assert row < end
                ahead = batch.future[b, t, :, 0]
                wanted = torch.tensor(
                    [row + h if row + h < end else float("nan") for h in range(1, 5)], dtype=ahead.dtype
                )
                torch.testing.assert_close(ahead, wanted, equal_nan=True)
            assert torch.isnan(batch.future[b, size:]).all()


def test_every_row_is_read():
    seen = torch.cat([pieces()[step].inputs[..., 0].flatten() for step in range(80)])
    assert set(np.arange(40)) | set(np.arange(100, 112)) | set(np.arange(200, 203)) <= set(seen.tolist())


def test_missing_targets_stay_missing():
    one = series(30)
    one.target[7] = np.nan
    batch = Pieces([one], [30], horizon=2, length=30, batch_size=1, seed=0)[0]
    missing = torch.isnan(batch.future[0, :, :, 0])
    assert missing[6, 0]
    assert missing[5, 1]
    assert missing.sum() == 2 + 3  # and beyond the end


def test_where_targets_are_many_some_rows_are_forecast_from(monkeypatch):
    monkeypatch.setattr(module, "MOST", 20)  # of 10 rows times 4 steps
    offsets = set()
    for step in range(20):
        batch = Pieces([series(50)], [40], horizon=4, length=10, batch_size=6, seed=0)[step]
        assert (batch.rows.diff() == 2).all()
        assert batch.future.shape[1] == batch.anchor.shape[1] == len(batch.rows)
        torch.testing.assert_close(batch.anchor[..., 0, 0], batch.inputs[:, batch.rows, 0])
        ahead = batch.future[:, :, 0, 0] - batch.inputs[:, batch.rows, 0]
        assert (ahead[~torch.isnan(ahead)] == 1).all()
        offsets.add(int(batch.rows[0]))
    assert offsets == {0, 1}


def test_shares_are_the_batch():
    batch = pieces()[0]
    parts = [batch.share(i, 3) for i in range(3)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
    assert all(torch.equal(part.rows, batch.rows) for part in parts)


@pytest.mark.parametrize("length", [3, 7, 100])
def test_windows_count_every_pair_of_cutoff_and_step_once(length):
    encoded = [series(50), series(20, 100)]
    pairs = []
    for batch in windows(encoded, [30, 15], [41, 20], horizon=4, length=length, batch_size=2):
        rows = batch.inputs[..., 0]
        for b, t, h, k in (~torch.isnan(batch.future)).nonzero().tolist():
            assert float(batch.future[b, t, h, k]) == float(rows[b, t]) + h + 1
            pairs.append((float(rows[b, t]), h + 1))
    wanted = [(float(c), h) for c in range(50) for h in range(1, 5) if 30 <= c + h < 41]
    wanted += [(float(c), h) for c in range(100, 120) for h in range(1, 5) if 115 <= c + h < 120]
    assert sorted(pairs) == sorted(wanted)


def test_no_windows_without_rows():
    assert windows([series(9)], [5], [5], horizon=2, length=4, batch_size=2) == []
    assert windows([series(9)], [0], [1], horizon=2, length=4, batch_size=2) == []
