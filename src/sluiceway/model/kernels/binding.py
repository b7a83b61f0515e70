"""The structs and functions of `native/abi.h`, as ctypes sees them."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint, c_void_p


class Product(Structure):
    _fields_ = [
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("weight_sums", c_void_p),
        ("bias", c_void_p),
        ("n_outputs", c_int32),
        ("n_inputs", c_int32),
        ("is_int8", c_int32),
    ]


class Layer(Structure):
    _fields_ = [
        ("attention_norm", c_void_p),
        ("qkv", Product),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("out", Product),
        ("mlp_norm", c_void_p),
        ("gate_up", Product),
        ("down", Product),
    ]


class Model(Structure):
    _fields_ = [
        ("layers", POINTER(Layer)),
        ("norm", c_void_p),
        ("embedding", c_void_p),
        ("head", Product),
        ("frequencies", c_void_p),
        ("magnitude", c_float),
        ("eps", c_float),
        ("n_layers", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("n_heads", c_int32),
        ("n_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab_size", c_int32),
        ("window", c_int32),
    ]


class Cache(Structure):
    _fields_ = [("keys", c_void_p), ("values", c_void_p), ("layer_elements", c_int64)]


class Rows(Structure):
    _fields_ = [
        ("first", c_void_p),
        ("start", c_void_p),
        ("first_block", c_void_p),
        ("blocks", c_void_p),
        ("n_rows", c_int32),
    ]


class Step(Structure):
    _fields_ = [
        ("rows", Rows),
        ("cache", Cache),
        ("token_ids", c_void_p),
        ("sampled", c_void_p),
        ("places", c_void_p),
        ("logits", c_void_p),
        ("largest", c_void_p),
        ("n_sampled", c_int32),
    ]


class SamplingRow(Structure):
    _fields_ = [
        ("logits", c_void_p),
        ("uniform", c_double),
        ("top_p", c_double),
        ("temperature", c_float),
        ("min_p", c_float),
        ("top_k", c_int32),
    ]


class LogprobsRow(Structure):
    _fields_ = [
        ("logits", c_void_p),
        ("logprobs", c_void_p),
        ("top_ids", c_void_p),
        ("token", c_int32),
        ("n_top", c_int32),
    ]


class Pool(Structure):
    _fields_ = [("parallel", c_void_p), ("n_threads", c_int32)]


class Kernels(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("open", CFUNCTYPE(c_void_p)),
        ("close", CFUNCTYPE(None, c_void_p)),
        ("forward", CFUNCTYPE(c_int, c_void_p, POINTER(Model), POINTER(Step), Pool)),
        ("multiply", CFUNCTYPE(c_int, POINTER(Product), c_void_p, c_int32, c_void_p, Pool)),
        ("attend", CFUNCTYPE(c_int, POINTER(Model), POINTER(Cache), POINTER(Rows), c_void_p, c_void_p, Pool)),
        ("sample", CFUNCTYPE(c_int, POINTER(SamplingRow), c_int32, c_int32, c_void_p, Pool)),
        ("logprobs", CFUNCTYPE(c_int, POINTER(LogprobsRow), c_int32, c_int32, Pool)),
        ("norm", CFUNCTYPE(None, c_void_p, c_void_p, c_float, c_int32, c_void_p)),
        ("swiglu", CFUNCTYPE(None, c_void_p, c_void_p, c_int32, c_void_p)),
    ]


Parallel = CFUNCTYPE(None, c_void_p, c_void_p, c_uint, c_uint)


def kernel_sets(library: ctypes.CDLL) -> list[Kernels]:
    """The sets of kernels that this processor runs, the best first."""
    found = (POINTER(Kernels) * 4)()
    n = library.sluiceway_kernels(found)
    return [found[index].contents for index in range(n)]
