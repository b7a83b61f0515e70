"""Native code for the CPU: a whole forward pass in bf16 or int8, sampling, and logprobs. See `native/abi.h`."""
