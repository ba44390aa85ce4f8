// Rows dealt out to threads in groups; few long rows by their blocks, whose results are put together in order.
#pragma once

#include <vector>

#include "group.hpp"
#include "threads.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

template <class T, int Size, class F> void each_group(const Frame<T>& frame, F body) {
    parallel_for(frame.job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            Group<T, Size> group(frame, i);
            body(group);
        }
    });
}
inline std::int64_t blocks_of(const Job& job) { return (job.cols.total + kBlock - 1) / kBlock; }

// Whether there are fewer groups than threads, so that rows are better split: by blocks, whose sums are added in order.
template <class T> bool few_long_rows(const Frame<T>& frame) {
    return !frame.job.offsets && frame.groups.total < frame.job.threads && blocks_of(frame.job) > 1;
}
// body(group, block, which of all blocks) with the block loaded.
template <class T, int Size, class F> void each_block(const Frame<T>& frame, F body) {
    const std::int64_t blocks = blocks_of(frame.job);
    parallel_for(frame.job.threads, frame.groups.total * blocks, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t unit = begin; unit < end; ++unit) {
            Group<T, Size> group(frame, unit / blocks);
            group.load(unit % blocks);
            body(group, unit % blocks, unit);
        }
    });
}
struct Number {  // a type of this namespace: std::vector<double> would be one function for all instruction sets
    double value = 0;
};
template <class X, int Size> std::vector<X> one_each(std::int64_t count) {
    return std::vector<X>(static_cast<std::size_t>(count * Size));
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
