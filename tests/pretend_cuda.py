"""Tensors that pretend to be on a GPU. CUDA code then runs on the CPU, and fails in the cases in which CUDA would fail.

Inside `pretend_cuda()` a tensor with device="cuda" reports the device cuda:0; its numbers are on the host. An operation
on such a tensor raises RuntimeError in five cases:

- An operand is on the CPU. CUDA allows this for copies, index tensors, and zero-dimensional tensors in elementwise
operations.
- The operation gets a generator of the CPU.
- CUDA does not have the kernel, as for integer matrix products.
- Another stream made the tensor, and the current stream has not waited for it.
- A collective call gets a CPU tensor, which nccl refuses.

`.numpy()` is refused too. Process groups use gloo but report that they use nccl. Autocast follows CUDA's rules.
`Pretended.hidden_draws` lists the operations that drew from the GPU's default generator. PyTorch's fused attention is
not listed, because it has no other way to draw dropout.

A build without CUDA cannot handle CUDA tensors. So in PyTorch's C++ code a pretended tensor is on the meta device and
has CUDA's dispatch keys; only Python sees cuda:0. Inside the `with` block, real meta tensors cannot be used.

These properties of a GPU are not pretended: the exact results and the speed of its kernels, its memory, asynchronous
execution, and several GPUs in a process.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch._dynamo  # must be imported before the functions below are replaced
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_GPU = torch.device("cuda", 0)
_HOST = torch.device("cpu")
_THERE = ("cuda", "meta")
_META = torch.device("meta")
_NAMES_GPU = re.compile(r"cuda(:0)?")
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
_COPIES = {"copy_", "_copy_from", "_to_copy", "set_data"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_NUMBERS_TOO = {"index_put", "index_put_", "_index_put_impl_", "masked_fill", "masked_fill_", "fill_", "where"}
_PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "addmv", "mv", "dot"}

# Names of the operations that CUDA's autocast computes in the lower precision, and of those that it computes in float32.
_LOWER = frozenset(
    [
        "linear",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "addmm",
        "addbmm",
        "baddbmm",
        "mv",
        "addmv",
        "einsum",
        "chain_matmul",
        "conv1d",
        "conv2d",
        "scaled_dot_product_attention",
        "prelu",
    ]
)
_WIDER = frozenset(
    [
        "softmax",
        "log_softmax",
        "softmin",
        "layer_norm",
        "group_norm",
        "norm",
        "cross_entropy",
        "nll_loss",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
        "kl_div",
        "binary_cross_entropy_with_logits",
        "cosine_similarity",
        "exp",
        "expm1",
        "pow",
        "__pow__",
        "__rpow__",
        "log",
        "log1p",
        "log2",
        "log10",
        "rsqrt",
        "reciprocal",
        "sum",
        "prod",
        "cumsum",
        "cumprod",
        "logsumexp",
        "softplus",
        "cdist",
        "dist",
        "acos",
        "asin",
        "cosh",
        "sinh",
        "tan",
        "erfinv",
    ]
)


class OnCuda(torch.Tensor):
    """A tensor on the pretended GPU. `host` has its numbers. `made` is (stream, tick): the stream that wrote it, and when."""

    host: torch.Tensor
    made: tuple[int, int]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: torch.Tensor, made: tuple[int, int]) -> "OnCuda":
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if host.layout == torch.strided:
                shape = torch.empty_strided((0,), (1,), dtype=host.dtype, device="meta")
                shape = shape.as_strided(host.shape, host.stride(), host.storage_offset())
            else:
                shape = torch.empty(host.shape, dtype=host.dtype, device="meta")
            wrapper = torch.Tensor._make_subclass(cls, shape, False, device_for_backend_keys=_GPU)  # type: ignore[call-arg]
        wrapper.host, wrapper.made = host, made
        return wrapper

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return 0

    def cuda(self, *_: Any, **__: Any) -> torch.Tensor:  # type: ignore[override]
        return self

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory first."
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"OnCuda({self.host!r})"


class Pretended:
    """The state of the pretended GPU, with records of its operations."""

    def __init__(self) -> None:
        self.hidden_draws: list[str] = []
        self.operations = 0
        self.random = torch.Generator()  # the GPU's default generator
        self.tick = 0
        self.streams = 1
        self.here = threading.local()
        self.lock = threading.Lock()

    @property
    def stream(self) -> "PretendedStream":
        """The current stream of this thread."""
        if not hasattr(self.here, "stream"):
            self.here.stream = PretendedStream(number=0)
        return self.here.stream

    def now(self) -> int:
        with self.lock:
            self.tick += 1
            return self.tick


_state: Pretended | None = None


def _pretended() -> Pretended:
    assert _state is not None, "a tensor of the pretended GPU is used outside pretend_cuda()"
    return _state


class PretendedStream(torch.Stream):
    """A stream. Before stream A reads a result of stream B, A must wait for an event that B has recorded."""

    waited: dict[int, int]

    def __new__(cls, device: Any = None, priority: int = 0, number: int | None = None) -> "PretendedStream":
        state = _pretended()
        if number is None:
            number, state.streams = state.streams, state.streams + 1
        stream = super().__new__(cls, stream_id=number, device_index=0, device_type=1)
        stream.waited = {}
        return stream

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_event(self, event: "PretendedEvent") -> None:
        for stream, tick in event.seen.items():
            self.waited[stream] = max(self.waited.get(stream, 0), tick)

    def synchronize(self) -> None:
        current = _pretended().stream
        current.waited[self.stream_id] = _pretended().now()


class PretendedEvent:
    """An event. It stores how far each stream had come when the event was recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.seen: dict[int, int] = {}

    def record(self, stream: PretendedStream | None = None) -> None:
        stream = _pretended().stream if stream is None else stream
        self.seen = {**stream.waited, stream.stream_id: _pretended().now()}

    def synchronize(self) -> None:
        _pretended().stream.wait_event(self)

    def elapsed_time(self, later: "PretendedEvent") -> float:
        return 1.0


class _Generator(torch.Generator):
    """A torch.Generator that may also be on the pretended GPU."""

    on: torch.device

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        generator = super().__new__(cls)
        generator.on = _indexed(torch.device(device))
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.on


def _indexed(device: torch.device) -> torch.device:
    return _GPU if device.type == "cuda" else device


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Applies `change` to the value. If the value is a list, tuple or dict, applies it to all items, also in nested containers."""
    if isinstance(value, (list, tuple)):
        changed = [_mapped(change, item) for item in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return {k: _mapped(change, item) for k, item in value.items()} if isinstance(value, dict) else change(value)


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Checks an operation, then runs it on the numbers on the host."""
    state = _pretended()
    name = func.overloadpacket.__name__
    leaves = [*_leaves(args), *_leaves(tuple(kwargs.values()))]
    ours = [leaf for leaf in leaves if isinstance(leaf, OnCuda)]
    wanted = kwargs.get("device")
    if name == "is_pinned":
        return False
    if name == "_pin_memory":
        if ours:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        return args[0].clone()
    if name == "record_stream":
        return None
    to_gpu = bool(ours) if wanted is None else wanted.type in _THERE
    if ours:
        _check(func, name, args, leaves, ours, state)
    elif func.namespace == "c10d" and name != "barrier":  # a barrier makes a CPU tensor itself
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if given:
            raise RuntimeError(f"{func}: No backend type associated with device type cpu (the group is nccl's)")
    if name == "copy_":
        to_gpu = isinstance(args[0], OnCuda)
    state.operations += to_gpu
    known = {id(leaf.host): leaf for leaf in ours}

    def inner(leaf: Any) -> Any:
        if isinstance(leaf, OnCuda):
            return leaf.host
        return _HOST if isinstance(leaf, torch.device) and leaf.type in _THERE else leaf

    plain_args, plain_kwargs = _mapped(inner, args), _mapped(inner, kwargs)
    if plain_kwargs.get("pin_memory"):
        plain_kwargs["pin_memory"] = False
    with _gpu_draws(func, leaves, to_gpu, state):
        out = func(*plain_args, **plain_kwargs)
    made = (state.stream.stream_id, state.now())

    def outer(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in known:  # the operation wrote in place, or to `out`
            wrapper = known[id(leaf)]
            if wrapper.shape != leaf.shape:
                raise RuntimeError(f"{func} changes a tensor's shape in place, which is not pretended")
            wrapper.made = made
            return wrapper
        return OnCuda(leaf, made) if to_gpu else leaf

    return _mapped(outer, out)


def _check(func: Any, name: str, args: Any, leaves: list[Any], ours: list[OnCuda], state: Pretended) -> None:
    """Raises RuntimeError if CUDA would refuse these operands."""
    for tensor in ours:
        stream, tick = tensor.made
        if stream != state.stream.stream_id and state.stream.waited.get(stream, 0) < tick:
            raise RuntimeError(f"{func}: stream {state.stream.stream_id} did not wait for what stream {stream} made")
    if name in _PRODUCTS and any(not (t.is_floating_point() or t.is_complex()) for t in ours):
        raise RuntimeError(f'{func}: "{name}_cuda" not implemented for integers')
    strangers = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, OnCuda)]
    if name in _COPIES or not strangers:
        return
    target = args[0] if args else None
    if func.namespace == "c10d":
        raise RuntimeError(f"{func}: No backend type associated with device type cpu (the group is nccl's)")
    if name in _INDEXING and isinstance(target, OnCuda):
        strangers = [t for t in strangers if not any(t is index for index in args[1] if index is not None)]
    if (
        (torch.Tag.pointwise in func.tags or name in _NUMBERS_TOO) and isinstance(target, OnCuda | float | int | bool)
    ) or (torch.Tag.pointwise in func.tags and not func._schema.is_mutable):
        strangers = [t for t in strangers if t.dim()]
    if strangers:
        raise RuntimeError(
            f"{func}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(a CPU tensor of shape {tuple(strangers[0].shape)})"
        )


@contextmanager
def _gpu_draws(func: Any, leaves: list[Any], to_gpu: bool, state: Pretended) -> Iterator[None]:
    """If an operation on the GPU draws from the default generator, replaces the CPU's default generator by the GPU's during the operation."""
    given = any(isinstance(leaf, torch._C.Generator) for leaf in leaves)
    if not to_gpu or given or torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    if not getattr(state.here, "in_attention", False):
        state.hidden_draws.append(str(func))
    host = torch.get_rng_state()
    torch.set_rng_state(state.random.get_state())
    try:
        yield
    finally:
        state.random.set_state(torch.get_rng_state())
        torch.set_rng_state(host)


class _Devices(TorchFunctionMode):
    """Replaces the CUDA device by the meta device in calls of PyTorch's C++ code, because there pretended tensors are meta tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = _cast(func, args, kwargs)
        if isinstance(kwargs.get("generator"), _Generator):
            _check_generator(func, args, kwargs)
        if func in _FROM_DATA and kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            return func(*args, **{**kwargs, "device": "cpu"}).to(_known(device))
        if func is torch.Tensor.new_tensor and isinstance(args[0], OnCuda):
            device = torch.device(kwargs.get("device") or _GPU)
            made = torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype)
            return made.to(_known(device)).requires_grad_(kwargs.get("requires_grad", False))
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], OnCuda):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.as_tensor(i) if isinstance(i, (list, np.ndarray)) else i for i in index)
            return func(args[0], index, *args[2:])
        if func is torch.nn.functional.scaled_dot_product_attention:
            _pretended().here.in_attention = True
            try:
                return func(*args, **kwargs)
            finally:
                _pretended().here.in_attention = False
        return func(*_mapped(_known, args), **_mapped(_known, kwargs))


def _check_generator(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Raises RuntimeError if the generator is on another device than the operation. The check is here, because C++ passes another generator object on."""
    there = isinstance(args[0], OnCuda) if args and isinstance(args[0], torch.Tensor) else False
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == "cuda"
    expected, found = "cuda" if there else "cpu", kwargs["generator"].device.type
    if expected != found:
        raise RuntimeError(f"{func}: Expected a '{expected}' device type for generator but found '{found}'")


def _cast(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Casts the arguments as CUDA's autocast does. C++ would not cast them, because it sees another device."""
    name = getattr(func, "__name__", "")
    if name not in _LOWER and name not in _WIDER:
        return args, kwargs
    wanted = torch.get_autocast_dtype("cuda") if name in _LOWER else torch.float32

    def cast(leaf: Any) -> Any:
        fits = isinstance(leaf, OnCuda) and leaf.is_floating_point() and leaf.dtype != torch.float64
        return leaf.to(wanted) if fits else leaf

    return _mapped(cast, args), _mapped(cast, kwargs)


def _known(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _META if value.type == "cuda" else value
    return "meta" if isinstance(value, str) and _NAMES_GPU.fullmatch(value) else value


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


@contextmanager
def _modes() -> Iterator[None]:
    with _Devices(), _Operations():
        yield


def _patches(state: Pretended) -> list[Any]:
    @contextmanager
    def stream(which: PretendedStream | None) -> Iterator[None]:
        before = state.stream
        state.here.stream = before if which is None else which
        try:
            yield
        finally:
            state.here.stream = before

    @contextmanager
    def device(_: Any) -> Iterator[None]:
        yield

    def nothing(*_: Any, **__: Any) -> None:
        return None

    cuda: dict[str, Any] = {
        "_lazy_init": nothing,
        "_is_in_bad_fork": lambda: False,
        "is_initialized": lambda: True,
        "_initialized": True,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "device": device,
        "synchronize": nothing,
        "empty_cache": nothing,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_name": lambda *_: "pretended",
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: SimpleNamespace(name="pretended", total_memory=80 << 30, major=9, minor=0),
        "mem_get_info": lambda *_: (64 << 30, 80 << 30),
        "memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": nothing,
        "manual_seed": lambda seed: state.random.manual_seed(seed ^ 0x6375),
        "manual_seed_all": lambda seed: state.random.manual_seed(seed ^ 0x6375),
        "get_rng_state": lambda *_: state.random.get_state(),
        "set_rng_state": lambda value, *_: state.random.set_state(value),
        "Stream": PretendedStream,
        "Event": PretendedEvent,
        "stream": stream,
        "current_stream": lambda *_: state.stream,
        "default_stream": lambda *_: PretendedStream(number=0),
    }
    run, apply, engine = threading.Thread.run, torch.nn.Module._apply, torch.autograd._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with _Devices():  # PyTorch disables this mode during backward()
            return engine(*args, **kwargs)

    def run_pretending(thread: threading.Thread) -> None:
        with _modes():
            run(thread)

    def apply_swapping(module: Any, fn: Callable, *args: Any, **kwargs: Any) -> Any:
        # A parameter cannot get the data of a tensor of another kind, so the tensors are swapped.
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(module, fn, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    init = dist.init_process_group

    def init_process_group(backend: str, *args: Any, **kwargs: Any) -> None:
        init("gloo", *args, **kwargs)

    return [
        mock.patch.object(dist, "init_process_group", init_process_group),
        mock.patch.object(dist, "get_backend", return_value="nccl"),
        # With nccl, Python objects are sent as CUDA tensors.
        mock.patch.object(dist.distributed_c10d, "_get_object_coll_device", return_value="cuda"),
        mock.patch.object(torch.cuda.nccl, "version", return_value=(2, 27, 3)),
        *(mock.patch.object(torch.cuda, name, value) for name, value in cuda.items()),
        mock.patch.object(torch, "Generator", _Generator),
        mock.patch.object(torch.autograd, "_engine_run_backward", run_backward),
        mock.patch.object(threading.Thread, "run", run_pretending),
        mock.patch.object(torch.nn.Module, "_apply", apply_swapping),
    ]


@contextmanager
def pretend_cuda() -> Iterator[Pretended]:
    """Inside the `with` block, this thread and all threads that it starts have one pretended GPU."""
    global _state
    assert _state is None, "pretend_cuda() does not nest"
    _state = Pretended()
    with ExitStack() as stack:
        stack.callback(_forget)
        for patch in _patches(_state):
            stack.enter_context(patch)
        stack.enter_context(_modes())
        yield _state


def _forget() -> None:
    global _state
    _state = None
