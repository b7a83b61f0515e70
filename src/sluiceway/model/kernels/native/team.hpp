// How threads share a step: they enter the pool once, and go through stages of items. Any thread may take any item.
//
// A stage is over when all its items are done, not when every thread has reached it. So a thread that loses its core
// between two items does not delay the others, and a late thread skips the stages that are done. The threads are those
// of the OpenMP runtime that torch uses: a second pool would compete with it.
#pragma once

#include <stdint.h>

#include "abi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

extern "C" int sched_yield(void);

namespace {

constexpr int kSpins = 4000;  // about 50 microseconds, as long as most stages take; then the thread yields its core

struct alignas(128) Stage {
    int32_t next_item;
    int32_t n_done;
};

inline void relax(int n_spins) {
    if (n_spins > kSpins) sched_yield();
#if defined(__x86_64__)
    else
        _mm_pause();
#endif
}

// One thread of a step. All threads call `run` in the same order with the same numbers of items.
class Member {
public:
    Member(Stage* stages, int n_threads) : stages_(stages), n_threads_(n_threads) {}

    int n_threads() const { return n_threads_; }

    template <class Item>
    void run(int n_items, Item item) {
        Stage& stage = *stages_++;
        for (;;) {
            const int index = __atomic_fetch_add(&stage.next_item, 1, __ATOMIC_RELAXED);
            if (index >= n_items) break;
            item(index);
            __atomic_fetch_add(&stage.n_done, 1, __ATOMIC_RELEASE);
        }
        for (int n_spins = 0; __atomic_load_n(&stage.n_done, __ATOMIC_ACQUIRE) < n_items; n_spins++) relax(n_spins);
    }

    // Runs ranges of rows: several for each thread, so that the wait for the last one is short.
    template <class Range>
    void run_ranges(int n, Range range) {
        const int wanted = n_threads_ == 1 ? 1 : 4 * n_threads_;
        const int size = n < wanted ? 1 : (n + wanted - 1) / wanted;
        run((n + size - 1) / size, [&](int index) {
            const int begin = index * size, end = begin + size;
            range(begin, end < n ? end : n);
        });
    }

private:
    Stage* stages_;
    int n_threads_;
};

template <class Body>
struct TeamWork {
    Body body;
    Stage* stages;
    int n_threads;

    static void enter(void* self) {
        const TeamWork& work = *static_cast<TeamWork*>(self);
        Member member(work.stages, work.n_threads);
        work.body(member);
    }
};

// `stages` must be zero, and at least as many as the body runs.
template <class Body>
void run_team(Pool pool, Stage* stages, Body body) {
    const bool is_alone = !pool.parallel || pool.n_threads < 2;
    TeamWork<Body> work{body, stages, is_alone ? 1 : pool.n_threads};
    if (is_alone)
        TeamWork<Body>::enter(&work);
    else
        pool.parallel(&TeamWork<Body>::enter, &work, unsigned(pool.n_threads), 0);
}

}  // namespace
