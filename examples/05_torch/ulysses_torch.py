"""Ulysses from PyTorch: one file to copy beside your model, over an installed libulysses.so.

    group = UlyssesGroup(sequence_parallel_process_group)
    q, k, v = group.scatter_qkv(qkv, heads=40)     # [B, S/P, 3*40*D]  ->  3 x [B, S, 40/P, D]
    o = attention(q, k, v)
    o = group.gather_heads(o)                      # [B, S, 40/P, D]   ->  [B, S/P, 40, D]

Tensors lie in host memory or on a GPU, where the data moves on the current stream. Gradients flow; torch.compile traces
through; CUDA graphs capture what has been called once before. Calls are collective: every rank of the group makes the
same ones in the same order. A call on which the ranks disagree raises UlyssesError on all of them and moves nothing.

Tensors are [..., sequence, heads, head_dim]; whatever stands before the sequence counts as batch. `seq_splits` gives
the tokens of each rank where they are not the same number everywhere. Needs torch 2.4 or newer and nothing else.
"""

import atexit
import collections
import ctypes
import math
import os
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["DistributedAttention", "UlyssesError", "UlyssesGroup", "all_to_all_4D", "balanced_split"]

# ---- The C API, as include/ulysses/ulysses.h has it ----

MAGIC, VERSION = 0x554C5953, 100  # ULYSSES_VERSION(0, 1, 0): the structs below are of that version
INVALID_USAGE, MISMATCH, OUT_OF_MEMORY, NOT_SUPPORTED = 5, 16, 17, 18  # some of ulyssesResult_t
MEMORY = {"cpu": 1, "cuda": 2}
DTYPES = {
    torch.int8: 0, torch.uint8: 1, torch.bool: 1, torch.int32: 2, torch.uint32: 3, torch.int64: 4, torch.uint64: 5,
    torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9, torch.float8_e4m3fn: 10,
    torch.float8_e5m2: 11,
}  # fmt: skip

_size, _int, _pointer, _text = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p


class Versioned(ctypes.Structure):
    """A struct that begins with its size, the magic number and the version."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), magic=MAGIC, version=VERSION, **fields)


_HEAD = [("size", _size), ("magic", ctypes.c_uint), ("version", ctypes.c_uint)]


class Config(Versioned):
    _fields_ = _HEAD + [("memory", _int), ("maxCtas", _int), ("windowCapBytes", _size), ("timeoutMs", _int),
                        ("reserved", _int), ("commName", _text)]  # fmt: skip


class CommInfo(Versioned):
    _fields_ = _HEAD + [("memory", _int), ("nRanks", _int), ("nHosts", _int), ("singleHost", _int), ("lsa", _int),
                        ("ranksPerDevice", _int), ("ncclVersion", _int), ("windowBytes", _size),
                        ("windowCapBytes", _size), ("fusedCalls", ctypes.c_uint64),
                        ("fallbackCalls", ctypes.c_uint64), ("lastPath", ctypes.c_char * 16),
                        ("lastReason", ctypes.c_char * 256)]  # fmt: skip


class A2ADesc(Versioned):
    _fields_ = _HEAD + [("batch", _size), ("seq", _size), ("heads", _size), ("headDim", _size), ("dtype", _int),
                        ("direction", _int), ("seqSplits", ctypes.POINTER(_size)),
                        ("headSplits", ctypes.POINTER(_size)), ("inStride", _size * 3), ("outStride", _size * 3),
                        ("replicateHeads", _int), ("headGroups", _size), ("boundOut", _pointer),
                        ("gradTracked", _int)]  # fmt: skip


class ParamDesc(Versioned):
    _fields_ = _HEAD + [("count", _size), ("shardType", _int), ("gatherType", _int), ("splits", ctypes.POINTER(_size)),
                        ("shard", _pointer), ("alignment", _size)]  # fmt: skip


class ParamConfig(Versioned):
    _fields_ = _HEAD + [("residency", _int), ("prefetchDepth", _int), ("budgetBytes", _size)]


class ParamStats(Versioned):
    _fields_ = _HEAD + [(name, ctypes.c_uint64) for name in
                        ("acquires", "hits", "gathers", "bytesMoved", "evictions", "prefetchHits")] + [
                        ("residentBytes", _size), ("peakBytes", _size)]  # fmt: skip


ALLGATHER = ctypes.CFUNCTYPE(_int, _pointer, _pointer, _pointer, _size)


class Oob(ctypes.Structure):
    _fields_ = [("rank", _int), ("nranks", _int), ("context", _pointer), ("allgather", ALLGATHER)]


class UlyssesError(RuntimeError):
    """What the library returned: `code` is an ulyssesResult_t, the text says what failed, where, and what to do."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class _Library:
    """libulysses.so: call("CommCount", comm, ...) calls ulyssesCommCount, and raises what it returns."""

    def __init__(self):
        name = os.environ.get("ULYSSES_LIBRARY", "libulysses.so.0")
        try:
            self._c = ctypes.CDLL(name)
        except OSError as error:
            raise ImportError(
                f"{error}. Install the library (cmake --install) and set LD_LIBRARY_PATH to its folder, or "
                "ULYSSES_LIBRARY to the file"
            ) from None
        self._c.ulyssesGetLastError.restype = _text
        self._c.ulyssesGetErrorString.restype = _text

    def call(self, name: str, *arguments) -> None:
        code = getattr(self._c, "ulysses" + name)(*arguments)
        if code:
            what = self._c.ulyssesGetErrorString(code).decode()
            raise UlyssesError(code, f"ulysses{name}: {what}: {self._c.ulyssesGetLastError().decode()}")


_library: Optional[_Library] = None


def library() -> _Library:
    global _library
    if _library is None:
        _library = _Library()
    return _library


def _sizes(values: Sequence[int]):
    return (_size * len(values))(*values)


# ---- Windows ----


class _Managed(ctypes.Structure):
    """DLPack's DLManagedTensor: memory of any kind on its way into a tensor. Bytes here; types are views of them."""

    _fields_ = [("data", _pointer), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64), ("context", _pointer),
                ("deleter", _pointer)]  # fmt: skip


_KDL = {"cpu": 1, "cuda": 2}  # DLDeviceType
_UNSIGNED = 1  # kDLUInt
_foreign: Dict[int, tuple] = {}  # tensors' storages in the library's memory: what DLPack points at, and whom to tell


@ctypes.CFUNCTYPE(None, _pointer)
def _storage_died(managed):  # in any thread
    _, _, tell = _foreign.pop(managed)
    if tell is not None:
        tell()


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, _pointer, _text, _pointer)(("PyCapsule_New", ctypes.pythonapi))


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device,
              when_dead: Optional[Callable[[], None]] = None) -> Tensor:  # fmt: skip
    """A tensor in the library's memory. when_dead() is called once no tensor of this storage is left."""
    nbytes = ctypes.c_int64(math.prod(shape) * dtype.itemsize)
    managed = _Managed(address, _KDL[device.type], device.index or 0, 1, _UNSIGNED, 8, 1, ctypes.pointer(nbytes), None,
                       0, None, ctypes.cast(_storage_died, _pointer))  # fmt: skip
    _foreign[ctypes.addressof(managed)] = managed, nbytes, when_dead
    flat = torch.utils.dlpack.from_dlpack(_new_capsule(ctypes.addressof(managed), b"dltensor", None))
    return flat.view(dtype).view(list(shape))


class _Part(NamedTuple):
    """Of the pool's window: bytes, and the streams that may still use them."""

    offset: int
    nbytes: int
    streams: frozenset


class _Pool:
    """A window of which outputs are parts: peers write them directly, in one pass.

    All ranks make it together; taking and returning parts is each rank's own business. A part comes back when the last
    tensor in it dies. On a GPU its next user's stream waits for the streams that it was used on before.
    """

    ALIGNMENT = 256

    def __init__(self, comm, device: torch.device, nbytes: int):
        self._device = device
        self._base = ctypes.c_void_p()
        library().call("MemAlloc", ctypes.byref(self._base), _size(nbytes), comm)
        self._free = [_Part(0, nbytes, frozenset())] if nbytes else []  # in order
        self._taken: Dict[int, _Part] = {}  # by offset
        self._returned = collections.deque()  # offsets of parts whose tensors have died, told in any thread
        self._span = nbytes

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Optional[Tensor]:
        """None where there is no room."""
        nbytes = math.prod(shape) * dtype.itemsize
        room = -(-nbytes // self.ALIGNMENT) * self.ALIGNMENT
        now = frozenset([torch.cuda.current_stream(self._device)] if self._device.type == "cuda" else [])
        self._collect()
        large = self._at_least(room)
        if not large:
            self._join(lambda a, b: True)
            large = self._at_least(room)
        if not large:
            return None
        at = next((i for i in large if self._free[i].streams <= now), large[0])
        offset, free, streams = self._free[at]
        for stream in streams - now:
            torch.cuda.current_stream(self._device).wait_stream(stream)
        rest = _Part(offset + room, free - room, streams)
        self._free[at : at + 1] = [rest] if rest.nbytes else []
        self._taken[offset] = _Part(offset, room, now)
        address = self._base.value + offset
        return tensor_at(address, shape, dtype, self._device, lambda: self._returned.append(offset))

    def holds(self, tensor: Tensor) -> bool:
        return 0 <= tensor.data_ptr() - (self._base.value or 0) < self._span

    def used_on(self, tensor: Tensor, stream) -> None:
        """One more stream to wait for when the tensor has died."""
        offset = tensor.untyped_storage().data_ptr() - self._base.value
        part = self._taken[offset]
        self._taken[offset] = part._replace(streams=part.streams | {stream})

    def _at_least(self, nbytes: int) -> List[int]:
        return [i for i, part in enumerate(self._free) if part.nbytes >= nbytes > 0]

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._taken.pop(self._returned.popleft()))
        self._free.sort()
        self._join(lambda a, b: a.streams == b.streams)

    def _join(self, which: Callable[[_Part, _Part], bool]) -> None:
        joined: List[_Part] = []
        for part in self._free:
            last = joined[-1] if joined else None
            if last and last.offset + last.nbytes == part.offset and which(last, part):
                joined[-1] = _Part(last.offset, last.nbytes + part.nbytes, last.streams | part.streams)
            else:
                joined.append(part)
        self._free = joined

    def close(self, comm) -> None:
        """Frees the window, unless tensors are still in it: they stay valid until the process ends."""
        self._collect()
        if not self._taken:
            library().call("MemFree", self._base, comm)


# ---- Who holds which heads ----


def balanced_split(n: int, ranks: int) -> List[int]:
    """As torch.tensor_split: the first n mod P ranks get one more."""
    return [(n + ranks - 1 - r) // ranks for r in range(ranks)]


def _replicated_split(heads: int, ranks: int) -> List[int]:
    """Fewer heads than ranks: one for each, every head on ranks / heads neighbours."""
    if ranks % heads:
        raise ValueError(f"{heads} heads cannot be replicated evenly over {ranks} ranks: heads must divide the ranks")
    return [1] * ranks


def _grouped_split(heads: int, kv_heads: int, ranks: int) -> List[int]:
    """Query heads go where their KV head goes: whole groups to a rank or, where ranks share a KV head, a part to each."""
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not form {kv_heads} equal groups: kv_heads must divide heads")
    group = heads // kv_heads
    if kv_heads >= ranks:
        return [kv * group for kv in balanced_split(kv_heads, ranks)]
    shared_by = len(_replicated_split(kv_heads, ranks)) // kv_heads
    return balanced_split(group, shared_by) * kv_heads


def _sum_replicas(x: Tensor, heads: int) -> Tensor:
    """[..., heads * replicas, D] to [..., heads, D]: added in rank order, in float32 where the type has fewer bits."""
    wide = torch.float32 if x.is_floating_point() and x.dtype.itemsize < 4 else x.dtype
    first, *others = x.unflatten(-2, (heads, -1)).unbind(-2)
    total = first.to(wide)
    for other in others:
        total = total + other.to(wide)
    return total.to(x.dtype)


# ---- Groups ----


class _Operand(NamedTuple):
    """One tensor of an exchange, in what is the same on all ranks and, of its sequence-sharded side, the strides."""

    batch: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    head_splits: Tuple[int, ...]  # add up to more than `heads` where heads are replicated
    strides: Tuple[int, int, int]  # of batch, sequence, head; zeros: contiguous
    grad: bool


def _strides(x: Tensor) -> Tuple[int, int, int]:
    """Of a [batch, seq, heads, D] tensor, as _Operand has them. What a batch of one says of its stride means nothing."""
    dense = (max(x.shape[1], 1) * x.shape[2] * x.shape[3], x.shape[2] * x.shape[3], x.shape[3])
    one = x.shape[0] == 1
    if x.stride()[one:3] == dense[one:]:
        return 0, 0, 0
    return (0 if one else x.stride(0)), x.stride(1), x.stride(2)


def _planes(x: Tensor) -> Tensor:
    """[..., seq, heads, D] as [batch, seq, heads, D]."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _readable(x: Tensor) -> Tensor:
    """x as the library can read it: with contiguous D; a copy where it is not."""
    readable = x.shape[3] <= 1 or (x.stride(3) == 1 and (x.stride(1) or x.stride(2)))
    return x if readable else x.contiguous()


_groups: "Dict[str, UlyssesGroup]" = {}  # by name, as operators know them; those that are open
_made: Dict[tuple, str] = {}  # by process group and kind of device: the names of those that drop-ins made


class UlyssesGroup:
    """The ranks of a torch.distributed process group, of any backend, which is needed only while this is made.

    `device`: where the tensors of all calls are; by default the current GPU, where there is one. Outputs that the
    caller does not give come from a pool of `pool_bytes` that peers write directly; beyond it they are torch's own
    memory, which takes one more copy. Exchanges are agreed on at the first call of a geometry and then remembered.

    Every rank calls close(); a `with` block does, and where it ends by an exception the peers are told.
    """

    MAX_PLANS = 256  # that no graph holds
    _numbers = 0

    def __init__(self, process_group: Optional[dist.ProcessGroup] = None, device=None, *, pool_bytes: int = 256 << 20,
                 window_cap_bytes: int = 0, timeout_seconds: float = 0):  # fmt: skip
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.rank, self.ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.name = f"ulysses-{UlyssesGroup._numbers}"
        UlyssesGroup._numbers += 1
        self.comm = ctypes.c_void_p()
        self._pool = None
        self._plans = collections.OrderedDict()  # the latest used last
        self._captured = set()  # keys of plans that graphs have recorded: they stay
        self._process = os.getpid()
        self._latest_stream = None
        self._boot(process_group, window_cap_bytes, timeout_seconds)
        if pool_bytes and self.ranks > 1:
            # Half of the cap at most: staging wants its part. The cap is the same on all ranks.
            nbytes = min(pool_bytes, self.info().windowCapBytes // 2)
            try:
                self._pool = _Pool(self.comm, self.device, nbytes)
            except UlyssesError as error:
                if error.code not in (OUT_OF_MEMORY, NOT_SUPPORTED):  # on all ranks, if on one
                    raise
        _groups[self.name] = self

    def _boot(self, process_group, window_cap_bytes, timeout_seconds) -> None:
        failure = []

        def allgather(_, send, receive, nbytes):
            try:
                blocks = [None] * self.ranks
                dist.all_gather_object(blocks, ctypes.string_at(send, nbytes), group=process_group)
                ctypes.memmove(receive, b"".join(blocks), nbytes * self.ranks)
                return 0
            except Exception as error:  # nothing may pass through the C caller
                failure.append(error)
                return 1

        oob = Oob(self.rank, self.ranks, None, ALLGATHER(allgather))
        config = Config(memory=MEMORY[self.device.type], windowCapBytes=window_cap_bytes,
                        timeoutMs=int(timeout_seconds * 1000), commName=self.name.encode())  # fmt: skip
        with torch.cuda.device(self.device if self.device.type == "cuda" else -1):
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # where CUDA is first used here: the library takes the device of its context
            try:
                library().call("CommInitOob", ctypes.byref(self.comm), ctypes.byref(oob), ctypes.byref(config))
            except UlyssesError as error:
                raise error from (failure[0] if failure else None)

    # -- for models

    def scatter_heads(self, x: Tensor, *, kv_heads: Optional[int] = None, replicate: bool = False,
                      seq_splits: Optional[Sequence[int]] = None, out: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """[..., S/P, H, D] to [..., S, H/P, D], before attention. x may be strided; its last dimension is contiguous.

        Heads that do not divide are split as torch.tensor_split does; or, where x is the query of grouped-query
        attention, so that they meet their one of `kv_heads`. `replicate`: fewer heads than ranks, those of K or V; each
        then goes to several ranks, whose gradients are added. `out` is written instead of a new tensor, and has no
        gradient.
        """
        heads = x.shape[-2]
        if replicate and heads < self.ranks:
            head_splits = _replicated_split(heads, self.ranks)
        else:
            head_splits = self._head_splits(heads, kv_heads)
        seq_splits = [x.shape[-3]] * self.ranks if seq_splits is None else list(seq_splits)
        if out is None:
            return torch.ops.ulysses.scatter_heads(x, seq_splits, head_splits, self.name, _tracked(x))
        torch.ops.ulysses.scatter_heads_into(x, out, seq_splits, head_splits, self.name)
        return out

    def gather_heads(self, x: Tensor, heads: Optional[int] = None, *, kv_heads: Optional[int] = None,
                     seq_splits: Optional[Sequence[int]] = None, out: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """[..., S, H/P, D] to [..., S/P, H, D], after attention: the inverse. `heads`: H, where ranks hold different
        numbers of them; `kv_heads`: as for the query that x is the answer to."""
        heads = x.shape[-2] * self.ranks if heads is None else heads
        seq_splits = balanced_split(x.shape[-3], self.ranks) if seq_splits is None else list(seq_splits)
        head_splits = self._head_splits(heads, kv_heads)
        if out is None:
            return torch.ops.ulysses.gather_heads(x, seq_splits, head_splits, heads, self.name, _tracked(x))
        torch.ops.ulysses.gather_heads_into(x, out, seq_splits, head_splits, heads, self.name)
        return out

    def scatter_qkv(self, qkv: Tensor, heads: int, kv_heads: Optional[int] = None, *,
                    seq_splits: Optional[Sequence[int]] = None) -> Tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """A fused projection [..., S/P, (heads + 2 * kv_heads) * D], of Q, K and V in this order, to the three of them,
        [..., S, H/P, D] each: one exchange, straight out of the projection; the gradient goes straight back into one.

        Fewer KV heads than ranks are replicated, and their gradients added in rank order in float32.
        """
        kv_heads = heads if kv_heads is None else kv_heads
        q_splits = _grouped_split(heads, kv_heads, self.ranks)
        few = kv_heads < self.ranks
        kv_splits = _replicated_split(kv_heads, self.ranks) if few else balanced_split(kv_heads, self.ranks)
        seq_splits = [qkv.shape[-2]] * self.ranks if seq_splits is None else list(seq_splits)
        return torch.ops.ulysses.scatter_qkv(qkv, seq_splits, q_splits, kv_splits, heads, kv_heads, self.name,
                                             _tracked(qkv))  # fmt: skip

    def empty_output(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that peers can write directly, as long as the pool has room; else one of torch's own. Local."""
        pooled = self._pool.empty(shape, dtype) if self._pool and not self._for_graph() else None
        return torch.empty(list(shape), dtype=dtype, device=self.device) if pooled is None else pooled

    def record_stream(self, tensor: Tensor, stream) -> None:
        """As tensor.record_stream(stream), which knows nothing of outputs in the pool: what `stream` does with the
        tensor is over before its memory is used again. For streams other than the one that it was made on."""
        if self.in_window(tensor):
            self._pool.used_on(tensor, stream)
        else:
            tensor.record_stream(stream)

    def in_window(self, tensor: Tensor) -> bool:
        """Whether peers can write it directly."""
        return self._pool is not None and self._pool.holds(tensor)

    def info(self) -> CommInfo:
        info = CommInfo()
        library().call("CommGetInfo", self.comm, ctypes.byref(info))
        return info

    def close(self) -> None:
        _groups.pop(self.name, None)
        self._synchronize()  # plans and windows go once no exchange may still use them
        for plan in self._plans.values():
            _destroy(plan)
        self._plans.clear()
        if self._pool:
            self._pool.close(self.comm)
            self._pool = None
        if self.comm:
            comm, self.comm = self.comm, ctypes.c_void_p()
            library().call("CommDestroy", comm)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        elif self.comm:
            del _groups[self.name]
            comm, self.comm = self.comm, ctypes.c_void_p()
            library().call("CommAbort", comm)

    # -- for programs beside the model: flat collectives, without gradient

    def all_gather(self, x: Tensor) -> Tensor:
        """[...] to [P, ...]."""
        return self._flat("AllGather", x.contiguous(), (self.ranks, *x.shape), x.numel())

    def all_to_all(self, x: Tensor) -> Tensor:
        """[P, ...] to [P, ...]: row p goes to rank p, and row r comes from rank r."""
        return self._flat("AlltoAll", x.contiguous(), x.shape, x.numel() // self.ranks)

    def _flat(self, name: str, x: Tensor, shape, count: int) -> Tensor:
        self._check(x)
        out = self.empty_output(shape, x.dtype)
        library().call(name, _address(x), _address(out), _size(count), DTYPES[x.dtype], self.comm, self.stream())
        return out

    # -- for the operators below

    def stream(self) -> ctypes.c_void_p:
        if self.device.type != "cuda":
            return ctypes.c_void_p()
        self._latest_stream = torch.cuda.current_stream(self.device)
        return ctypes.c_void_p(self._latest_stream.cuda_stream)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _comes_to_rest(self, seconds: float) -> bool:
        """Whether the exchanges on the GPU are over within this time; where a peer has failed they may not be."""
        if self._latest_stream is None:
            return True
        last, end = self._latest_stream.record_event(), time.monotonic() + seconds
        while not last.query() and time.monotonic() < end:
            time.sleep(0.001)
        return last.query()

    def _capturing(self) -> bool:
        if self.device.type != "cuda":
            return False
        with torch.cuda.device(self.device):
            return torch.cuda.is_current_stream_capturing()

    def _for_graph(self) -> bool:
        """Whether outputs belong into the memory that torch keeps for a CUDA graph, which goes on writing where it was
        captured: under capture, and in the run before it under torch.compile(mode="reduce-overhead")."""
        if self.device.type != "cuda":
            return False
        trees = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is not None:
            try:
                manager = trees.get_manager(self.device.index, create_if_none_exists=False)
                if manager is not None and manager.stream == torch.cuda.current_stream(self.device):
                    return True
            except Exception:  # other insides than those of torch 2.4 to 2.12
                pass
        return self._capturing()

    def _head_splits(self, heads: int, kv_heads: Optional[int]) -> List[int]:
        return balanced_split(heads, self.ranks) if kv_heads is None else _grouped_split(heads, kv_heads, self.ranks)

    def _check(self, *tensors: Tensor) -> None:
        if not self.comm:
            raise RuntimeError(f"the group {self.name} is closed")
        if os.getpid() != self._process:
            raise RuntimeError(f"the group {self.name} belongs to the process that made it, not to its forks")
        for tensor in tensors:
            if tensor.device != self.device:
                raise ValueError(f"a tensor on {tensor.device}, but the tensors of this group are on {self.device}")
            if tensor.dtype not in DTYPES:
                raise ValueError(f"{tensor.dtype} is none of the types that can be exchanged")

    def _exchange(self, scatter: bool, seq_splits: Sequence[int], operands: Sequence[_Operand],
                  inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:  # fmt: skip
        """Sequence-sharded tensors of these operands to head-sharded ones, or the other way: each other's inverse."""
        self._check(*inputs, *outputs)
        for operand, x, y in zip(operands, inputs, outputs):
            wide = operand.heads if scatter else sum(operand.head_splits)
            sides = [(operand.batch, seq_splits[self.rank], wide, operand.head_dim),
                     (operand.batch, sum(seq_splits), operand.head_splits[self.rank], operand.head_dim)]  # fmt: skip
            for tensor, shape in zip((x, y), sides if scatter else reversed(sides)):
                if tuple(tensor.shape) != shape or tensor.dtype != operand.dtype:
                    raise ValueError(f"a {tensor.dtype} tensor {list(tensor.shape)}, where the exchange of this rank "
                                     f"has {operand.dtype} {list(shape)}")  # fmt: skip
        key, capturing = (tuple(seq_splits), tuple(operands)), self._capturing()
        if key in self._plans:
            self._plans.move_to_end(key)
        elif capturing:
            raise UlyssesError(INVALID_USAGE, "a CUDA graph is being captured, and this exchange has not been made "
                               "before: ranks agree on it at the first call, so run it once outside of the capture, "
                               "with tensors of the same shapes, strides and requires_grad")  # fmt: skip
        else:
            self._forget_a_plan()
            self._plans[key] = self._plan(*key)
        if capturing:
            self._captured.add(key)
        addresses = [(ctypes.c_void_p * len(side))(*(t.data_ptr() for t in side)) for side in (inputs, outputs)]
        library().call("PlanExecute", self._plans[key][0 if scatter else 1], *addresses, self.stream())

    def _forget_a_plan(self) -> None:
        """The one that was not used for longest, where there are too many. Graphs need theirs for as long as they are."""
        if len(self._plans) - len(self._captured) >= self.MAX_PLANS:
            self._synchronize()
            _destroy(self._plans.pop(next(key for key in self._plans if key not in self._captured)))

    def _plan(self, seq_splits: Tuple[int, ...], operands: Tuple[_Operand, ...]):
        """A plan and its inverse."""
        sequence = _sizes(seq_splits)
        descs = (A2ADesc * len(operands))()
        for desc, operand in zip(descs, operands):
            replicate = sum(operand.head_splits) > operand.heads
            desc.__init__(
                batch=operand.batch, seq=sum(seq_splits), heads=operand.heads, headDim=operand.head_dim,
                dtype=DTYPES[operand.dtype], seqSplits=sequence, inStride=operand.strides, replicateHeads=replicate,
                headSplits=None if replicate else _sizes(operand.head_splits), gradTracked=operand.grad)  # fmt: skip
        forward, backward = ctypes.c_void_p(), ctypes.c_void_p()
        library().call("PlanCreate", ctypes.byref(forward), len(descs), descs, self.comm)
        library().call("PlanInverse", forward, None, ctypes.byref(backward))
        return forward, backward


def _destroy(plan) -> None:
    for direction in plan:
        library().call("PlanDestroy", direction)


@atexit.register
def _close_all() -> None:
    """A rank that ends in good order has left, for its peers, and not died; what drop-ins made nobody else closes."""
    for group in list(_groups.values()):
        try:
            if group._process == os.getpid() and group._comes_to_rest(2.0):
                group.close()
        except Exception:  # a GPU in trouble has said so before
            pass


def _address(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _tracked(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


# ---- Operators: what autograd and torch.compile see. Each one's backward is another one. ----


def _scattered(x: Tensor, seq_splits: Sequence[int], head_splits: Sequence[int], group: str) -> List[int]:
    return [*x.shape[:-3], sum(seq_splits), head_splits[_groups[group].rank], x.shape[-1]]


def _gathered(x: Tensor, seq_splits: Sequence[int], heads: int, group: str) -> List[int]:
    return [*x.shape[:-3], seq_splits[_groups[group].rank], heads, x.shape[-1]]


def _operand(x: Tensor, heads: int, head_splits: Sequence[int], strides, grad: bool) -> _Operand:
    return _Operand(x.shape[0], heads, x.shape[3], x.dtype, tuple(head_splits), strides, grad)


def _scatter(x: Tensor, out: Tensor, seq_splits, head_splits, group: str, grad: bool) -> None:
    x = _readable(_planes(x))
    operand = _operand(x, x.shape[2], head_splits, _strides(x), grad)
    _groups[group]._exchange(True, seq_splits, [operand], [x], [_planes(out)])


def _gather(x: Tensor, out: Tensor, seq_splits, head_splits, group: str, grad: bool) -> None:
    heads, held = out.shape[-2], sum(head_splits)
    x, whole = _planes(x.contiguous()), out
    if held > heads:
        whole = _groups[group].empty_output([*out.shape[:-2], held, out.shape[-1]], out.dtype)
    operand = _operand(x, heads, head_splits, (0, 0, 0), grad)
    _groups[group]._exchange(False, seq_splits, [operand], [x], [_planes(whole)])
    if held > heads:
        out.copy_(_sum_replicas(whole, heads))


def _contiguous(out: Tensor) -> Tensor:
    if not out.is_contiguous():
        raise ValueError("out has to be contiguous")
    return out


@torch.library.custom_op("ulysses::scatter_heads", mutates_args=())
def _scatter_heads(x: Tensor, seq_splits: List[int], head_splits: List[int], group: str, grad: bool) -> Tensor:
    out = _groups[group].empty_output(_scattered(x, seq_splits, head_splits, group), x.dtype)
    _scatter(x, out, seq_splits, head_splits, group, grad)
    return out


@_scatter_heads.register_fake
def _(x, seq_splits, head_splits, group, grad):
    return x.new_empty(_scattered(x, seq_splits, head_splits, group))


@torch.library.custom_op("ulysses::gather_heads", mutates_args=())
def _gather_heads(x: Tensor, seq_splits: List[int], head_splits: List[int], heads: int, group: str,
                  grad: bool) -> Tensor:  # fmt: skip
    out = _groups[group].empty_output(_gathered(x, seq_splits, heads, group), x.dtype)
    _gather(x, out, seq_splits, head_splits, group, grad)
    return out


@_gather_heads.register_fake
def _(x, seq_splits, head_splits, heads, group, grad):
    return x.new_empty(_gathered(x, seq_splits, heads, group))


@torch.library.custom_op("ulysses::scatter_heads_into", mutates_args=("out",))
def _scatter_heads_into(x: Tensor, out: Tensor, seq_splits: List[int], head_splits: List[int], group: str) -> None:
    _scatter(x, _contiguous(out), seq_splits, head_splits, group, False)


@torch.library.custom_op("ulysses::gather_heads_into", mutates_args=("out",))
def _gather_heads_into(x: Tensor, out: Tensor, seq_splits: List[int], head_splits: List[int], heads: int,
                       group: str) -> None:  # fmt: skip
    if out.shape[-2] != heads:
        raise ValueError(f"out has {out.shape[-2]} heads, not {heads}")
    _gather(x, _contiguous(out), seq_splits, head_splits, group, False)


def _remember(ctx, inputs, output):
    x, *ctx.rest = inputs
    ctx.heads = x.shape[-2]


def _scatter_heads_backward(ctx, gradient):
    seq_splits, head_splits, group, grad = ctx.rest
    return _gather_heads(gradient, seq_splits, head_splits, ctx.heads, group, grad), None, None, None, None


def _gather_heads_backward(ctx, gradient):
    seq_splits, head_splits, _, group, grad = ctx.rest
    return _scatter_heads(gradient, seq_splits, head_splits, group, grad), None, None, None, None, None


_scatter_heads.register_autograd(_scatter_heads_backward, setup_context=_remember)
_gather_heads.register_autograd(_gather_heads_backward, setup_context=_remember)


# The fused projection: [batch, seq, (heads + 2 * kv_heads) * D], and Q, K and V out of it.


def _parts(qkv: Tensor, heads: int, kv_heads: int) -> List[Tensor]:
    """Q, K and V where they lie in the projection."""
    head_dim = qkv.shape[-1] // (heads + 2 * kv_heads)
    flat = qkv.reshape(math.prod(qkv.shape[:-2]), *qkv.shape[-2:])
    widths = [n * head_dim for n in (heads, kv_heads, kv_heads)]
    return [part.unflatten(-1, (-1, head_dim)) for part in flat.split(widths, -1)]


def _fused_operands(parts: Sequence[Tensor], q_splits, kv_splits, grad: bool) -> List[_Operand]:
    return [_operand(part, part.shape[2], splits, _strides(part), grad)
            for part, splits in zip(parts, (q_splits, kv_splits, kv_splits))]  # fmt: skip


def _scattered_qkv(qkv: Tensor, seq_splits, q_splits, kv_splits, heads: int, kv_heads: int, group: str):
    """The shapes of Q, K and V."""
    rank = _groups[group].rank
    if qkv.shape[-1] % (heads + 2 * kv_heads):
        raise ValueError(f"a projection {qkv.shape[-1]} wide is none of {heads} and twice {kv_heads} heads")
    head_dim = qkv.shape[-1] // (heads + 2 * kv_heads)
    return [[*qkv.shape[:-2], sum(seq_splits), splits[rank], head_dim] for splits in (q_splits, kv_splits, kv_splits)]


@torch.library.custom_op("ulysses::scatter_qkv", mutates_args=())
def _scatter_qkv(qkv: Tensor, seq_splits: List[int], q_splits: List[int], kv_splits: List[int], heads: int,
                 kv_heads: int, group: str, grad: bool) -> Tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    g = _groups[group]
    shapes = _scattered_qkv(qkv, seq_splits, q_splits, kv_splits, heads, kv_heads, group)
    q, k, v = (g.empty_output(shape, qkv.dtype) for shape in shapes)
    parts = _parts(qkv if qkv.stride(-1) == 1 else qkv.contiguous(), heads, kv_heads)
    operands = _fused_operands(parts, q_splits, kv_splits, grad)
    g._exchange(True, seq_splits, operands, parts, [_planes(x) for x in (q, k, v)])
    return q, k, v


@_scatter_qkv.register_fake
def _(qkv, seq_splits, q_splits, kv_splits, heads, kv_heads, group, grad):
    shapes = _scattered_qkv(qkv, seq_splits, q_splits, kv_splits, heads, kv_heads, group)
    return tuple(qkv.new_empty(shape) for shape in shapes)


def _gathered_qkv(q: Tensor, seq_splits, heads: int, kv_heads: int, group: str) -> List[int]:
    return [*q.shape[:-3], seq_splits[_groups[group].rank], (heads + 2 * kv_heads) * q.shape[-1]]


@torch.library.custom_op("ulysses::gather_qkv", mutates_args=())
def _gather_qkv(q: Tensor, k: Tensor, v: Tensor, seq_splits: List[int], q_splits: List[int], kv_splits: List[int],
                heads: int, kv_heads: int, group: str, grad: bool) -> Tensor:  # fmt: skip
    g = _groups[group]
    qkv = g.empty_output(_gathered_qkv(q, seq_splits, heads, kv_heads, group), q.dtype)
    parts = _parts(qkv, heads, kv_heads)
    operands = _fused_operands(parts, q_splits, kv_splits, grad)
    held = sum(kv_splits)
    whole = list(parts)
    if held > kv_heads:  # every replica comes back
        whole[1:] = (g.empty_output([*part.shape[:2], held, part.shape[3]], part.dtype) for part in parts[1:])
    g._exchange(False, seq_splits, operands, [_planes(x.contiguous()) for x in (q, k, v)], whole)
    if held > kv_heads:
        for part, replicas in zip(parts[1:], whole[1:]):
            part.copy_(_sum_replicas(replicas, kv_heads))
    return qkv


@_gather_qkv.register_fake
def _(q, k, v, seq_splits, q_splits, kv_splits, heads, kv_heads, group, grad):
    return q.new_empty(_gathered_qkv(q, seq_splits, heads, kv_heads, group))


def _scatter_qkv_setup(ctx, inputs, output):
    ctx.rest = inputs[1:]


def _scatter_qkv_backward(ctx, *gradients):
    return _gather_qkv(*gradients, *ctx.rest), *([None] * len(ctx.rest))


def _gather_qkv_setup(ctx, inputs, output):
    ctx.rest = inputs[3:]


def _gather_qkv_backward(ctx, gradient):
    return *_scatter_qkv(gradient, *ctx.rest), *([None] * len(ctx.rest))


_scatter_qkv.register_autograd(_scatter_qkv_backward, setup_context=_scatter_qkv_setup)
_gather_qkv.register_autograd(_gather_qkv_backward, setup_context=_gather_qkv_setup)


# ---- Drop-ins ----

@torch.compiler.assume_constant_result
def _group_of(process_group: Optional[dist.ProcessGroup], device: str) -> str:
    """The name of the group that serves this process group's calls; made at the first."""
    key = (dist.group.WORLD if process_group is None else process_group, device)
    if _made.get(key) not in _groups:
        _made[key] = UlyssesGroup(process_group, device).name
    return _made[key]


def all_to_all_4D(input: Tensor, scatter_dim: int = 2, gather_dim: int = 1,
                  group: Optional[dist.ProcessGroup] = None) -> Tensor:  # fmt: skip
    """The all_to_all_4D of DeepSpeed-Ulysses' descendants (FastVideo, xDiT, USP). The group is made at the first call."""
    name = _group_of(group, input.device.type)
    if (scatter_dim, gather_dim) == (2, 1):
        return _groups[name].scatter_heads(input)
    if (scatter_dim, gather_dim) == (1, 2):
        return _groups[name].gather_heads(input)
    raise ValueError(f"scatter_dim {scatter_dim}, gather_dim {gather_dim}: heads are dimension 2, the sequence is 1")


class DistributedAttention(torch.nn.Module):
    """DeepSpeed-Ulysses' module: any attention of whole sequences, over sequences that are sharded.

    local_attention(q, k, v, ...) gets and returns [B, S, H/P, D]; this takes and returns [B, S/P, H, D]. K and V of
    fewer heads than ranks are replicated.
    """

    def __init__(self, local_attention, sequence_process_group: Optional[dist.ProcessGroup] = None):
        super().__init__()
        self.local_attention, self.process_group = local_attention, sequence_process_group

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs) -> Tensor:
        group = _groups[_group_of(self.process_group, query.device.type)]
        heads, kv_heads = query.shape[-2], key.shape[-2]
        q = group.scatter_heads(query, kv_heads=kv_heads)
        k, v = (group.scatter_heads(x, replicate=True) for x in (key, value))
        return group.gather_heads(self.local_attention(q, k, v, *args, **kwargs), heads, kv_heads=kv_heads)
