"""Native code for the CPU: a whole forward pass in bf16 or int8, and the draw of a token. See `native/abi.h`."""
