"""Dropout keeps the mean, drops elements at the given rate, shows no pattern, and depends only on the seed."""

import pytest
import torch

from graphmill.models.primitives.dropout import Dropout, MaskRows


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate_mean_and_independence(p):
    torch.manual_seed(0)
    num = 400_001
    y = Dropout(p)(torch.ones(num))
    kept = (y != 0).double()
    error = 5 * (p * (1 - p) / num) ** 0.5
    assert abs(float(kept.mean()) - (1 - p)) < error
    torch.testing.assert_close(y[y != 0], torch.full((int(kept.sum()),), 1 / (1 - p)), rtol=1e-4, atol=0)
    # Elements at distances 1 to 4 share a 64-bit word or are in neighboring words. No position in a word is dropped more often.
    for lag in (1, 2, 3, 4):
        centred = kept - kept.mean()
        assert abs(float((centred[lag:] * centred[:-lag]).mean())) < 5 * p * (1 - p) / num**0.5
    for phase in range(4):
        assert abs(float(kept[phase::4].mean()) - (1 - p)) < 2 * error


def test_gradient_is_the_same_mask():
    torch.manual_seed(1)
    x = torch.ones(5, 7, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0 < int((y == 0).sum()) < 35


def test_follows_the_seed_and_rests_in_eval():
    module, x = Dropout(0.5), torch.ones(3, 50)
    torch.manual_seed(2)
    first, second = module(x), module(x)
    torch.manual_seed(2)
    assert torch.equal(module(x), first)
    assert not torch.equal(first, second)
    assert module.eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_refuses_rates_outside_the_unit_interval(p):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        Dropout(p)


def test_masks_of_rows_do_not_depend_on_who_holds_them():
    module, x = Dropout(0.3), torch.ones(10_000, 6)
    rows = MaskRows(5, 0).of(1)
    whole = module(x, rows)
    for first, stop in ((0, 1), (4090, 4100), (4096, 8192), (9_999, 10_000), (7, 7)):
        part = module(x[first:stop], MaskRows(rows.key, first))
        assert torch.equal(part, whole[first:stop])
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    assert torch.equal(module(x, rows), whole), "the same again, whatever the default generator"
    assert torch.equal(torch.rand(()), expected), "which is not drawn from"
    kept = (whole != 0).double()
    assert abs(float(kept.mean()) - 0.7) < 0.01
    for other in (MaskRows(5, 0).of(2), MaskRows(6, 0).of(1)):
        agree = ((module(x, other) != 0) == (whole != 0)).double().mean()
        assert abs(float(agree) - 0.58) < 0.01, "another purpose or seed has an independent mask"
    torch.testing.assert_close(whole[whole != 0], torch.full((int(kept.sum()),), 1 / 0.7), rtol=1e-4, atol=0)
    assert module.eval()(x, rows) is x
