// A buffer that can grow: whole lines of 64 bytes, filled with zeros when they are allocated.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {

class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { free(data_); }

    // False if there is no memory. The content is lost when the buffer grows.
    bool reserve(int64_t n_bytes) {
        if (n_bytes <= size_) return true;
        free(data_);
        size_ = 0;
        void* data = nullptr;
        if (posix_memalign(&data, 64, size_t(n_bytes))) data = nullptr;
        data_ = data;
        if (!data_) return false;
        memset(data_, 0, size_t(n_bytes));
        size_ = n_bytes;
        return true;
    }

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

private:
    void* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace
