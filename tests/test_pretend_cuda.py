"""The pretended GPU refuses what CUDA refuses and allows what CUDA allows."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.pretend_cuda import OnCuda, pretend_cuda

CPU = torch.ones(3)
MIXES = {
    "a sum": lambda x: x + CPU,
    "the other way": lambda x: CPU * x,
    "in place": lambda x: x.add_(CPU),
    "into a number on the CPU": lambda x: torch.tensor(1.0).add_(x.sum()),
    "a product": lambda x: torch.outer(x, CPU),
    "a product with a number of no dimension": lambda x: torch.cat([x, torch.tensor([1.0])]),
    "parts": lambda x: torch.stack([x, CPU]),
    "a layer": lambda x: nn.Linear(3, 3)(x),
    "a mask": lambda x: torch.where(CPU > 0, x, 0.0),
    "rows by a tensor on the CPU": lambda x: x.index_select(0, torch.tensor([0])),
    "a GPU's index into the CPU": lambda x: CPU[torch.tensor([0], device="cuda")],
    "integers": lambda x: torch.ones(2, 2, dtype=torch.int64, device="cuda") @ x.long()[:2],
    "the CPU's generator": lambda x: torch.rand(3, device="cuda", generator=torch.Generator()),
    "pinning it": lambda x: x.pin_memory(),
}
ALLOWED = {
    "a number": lambda x: x * 2.0 + torch.tensor(1.0),
    "a number first": lambda x: torch.tensor(2.0) * x,
    "a copy": lambda x: torch.empty(3, device="cuda").copy_(CPU),
    "indexing by a tensor on the CPU": lambda x: x[torch.tensor([0, 2])],
    "indexing by a list": lambda x: x[[0, 2]],
    "its own generator": lambda x: torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(0)),
    "new tensors": lambda x: x.new_tensor([1.0]) + x.new_zeros(1) + torch.tensor([2.0], device=x.device),
}


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_is_refused(name):
    with pretend_cuda(), pytest.raises(RuntimeError):
        MIXES[name](torch.ones(3, device="cuda"))


@pytest.mark.parametrize("name", ALLOWED)
def test_what_cuda_allows_is_allowed(name):
    with pretend_cuda():
        out = ALLOWED[name](torch.ones(3).to("cuda", non_blocking=True))
        assert isinstance(out, OnCuda)
        assert out.device == torch.device("cuda", 0)
        assert out.is_cuda
        assert out.cpu().device.type == "cpu"


def test_numpy_is_refused():
    with pretend_cuda():
        x = torch.ones(3, device="cuda")
        for read in (lambda: x.numpy(), lambda: np.asarray(x)):
            with pytest.raises(TypeError, match="numpy"):
                read()
        assert x.tolist() == x.cpu().numpy().tolist() == [1, 1, 1]


def test_a_model_trains_there_and_a_mix_in_a_backward_pass_is_seen():
    class Mixing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad + torch.ones(3)

    with pretend_cuda() as pretended:
        model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).to("cuda")
        assert all(isinstance(p, nn.Parameter) and p.is_cuda for p in copy.deepcopy(model).parameters())
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        with torch.autocast("cuda", torch.bfloat16):
            hidden = model[0](torch.ones(2, 3, device="cuda"))
            assert hidden.dtype == torch.bfloat16
            assert model[1](hidden).dtype == torch.float32
        model(torch.rand(2, 3, device="cuda")).square().sum().backward()
        optimizer.step()
        assert pretended.hidden_draws == ["aten.rand.default"]
        with pytest.raises(RuntimeError, match="same device"):
            Mixing.apply(torch.ones(3, device="cuda", requires_grad=True)).sum().backward()


def test_a_stream_must_wait_for_another():
    with pretend_cuda():
        stream, arrived = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(stream):
            x = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
            arrived.record(stream)
        with pytest.raises(RuntimeError, match="did not wait"):
            x + 1
        torch.cuda.current_stream().wait_event(arrived)
        assert (x + 1).tolist() == [2, 2, 2]


def test_nothing_is_left_behind():
    before = torch.cuda.is_available(), torch.Generator, torch.nn.Module._apply
    with pretend_cuda():
        assert torch.cuda.is_available()
    assert (torch.cuda.is_available(), torch.Generator, torch.nn.Module._apply) == before
