// The kernels for draws, filters and Gumbel noise. This file is compiled once for each instruction set.
//
// Each row is processed by one thread. The draw is the arg max of beta z + g. Without filters, the row is read once,
// and only the best column so far is kept between blocks. With filters, the row is read a few times, block by block.
#include "sample/filters.hpp"
#include "sample/gumbel_max.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::sample {
namespace {

enum Status : std::uint8_t { kFine, kEmpty, kNaNs, kTooMany, kOutOfRange };

// Returns the random words of one draw of a row.
Philox words_of(const Args& args, std::int64_t row, std::int64_t draw) {
    const std::int64_t seed = args.seed ? integer_at(args.seed, args, row) : 0;
    const std::int64_t stream = args.stream ? integer_at(args.stream, args, row) : row;
    return {static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(stream), static_cast<std::uint32_t>(draw)};
}

// A draw from the part of a row that a process has. Its column is the number among the columns of all processes.
struct Part {
    Best best;
    std::int32_t nan = 0, infinite = 0;  // no bool: messages have no padding, whose bytes would be undefined
};

template <class T> class Draws {
    static constexpr std::int64_t kTogether = 32;  // draws of a row that share one pass
    const Args& args_;
    Row<T> row_;
    const std::int64_t at_, begin_;  // the row, and the number of its first column among those of all processes
    std::int64_t* const index_;
    char* const logprob_;
    Moments p_;

    Philox words(std::int64_t draw) const { return words_of(args_, at_, draw); }
    void put(std::int64_t draw, double x, std::int64_t column) const {
        index_[draw] = column;
        if (!logprob_) return;
        const double logprob = x - p_.log_l();
        if (args_.logprob.type == Type::f64) reinterpret_cast<double*>(logprob_)[draw] = logprob;
        else reinterpret_cast<float*>(logprob_)[draw] = static_cast<float>(logprob);
    }
    void put_size(std::int64_t size) const {
        if (args_.support_size) integer_at(args_.support_size, args_, at_) = size;
    }
    Status fail(Status why) const {
        std::fill_n(index_, args_.draws, std::int64_t{-1});
        put_size(0);
        return why;
    }

    // Makes `count` draws in one pass over the row. In each block, distances are from the maximum of that block.
    // Returns true if the row contains a NaN.
    bool nan_or_best(std::int64_t first, std::int64_t count, Best* best) {
        row_.infinite = false;
        for (std::int64_t b = 0; b < row_.group.blocks(); ++b) {
            const std::int64_t n = row_.group.end(b) - row_.group.begin(b);
            Look<T> found = look(row_.as_they_are(b), n);
            if (found.nan) return true;
            if (found.top == std::numeric_limits<T>::infinity()) {
                if (!row_.infinite) std::fill_n(best, count, Best{});
                row_.infinite = true;
                found.top = 0;
            } else if (row_.infinite || found.top == -std::numeric_limits<T>::infinity()) {
                continue;
            }
            const Piece<T> piece{row_.scores(b), nullptr, begin_ + row_.group.begin(b), n};
            for (std::int64_t i = 0; i < count; ++i)
                draw(piece, row_.kept, static_cast<double>(found.top), row_.beta, words(first + i), best[i]);
        }
        return false;
    }
    Status at_once(std::int64_t first, std::int64_t count) {
        Best best[kTogether];
        if (nan_or_best(first, count, best)) return kNaNs;
        if (best[0].at < 0) return kEmpty;
        for (std::int64_t i = 0; i < count; ++i) put(first + i, 0, best[i].at);
        return kFine;
    }
    // Calls draw(first, count) for up to kTogether draws at a time, until a call fails.
    template <class F> Status together(F draw) const {
        Status status = kFine;
        for (std::int64_t first = 0; first < args_.draws && status == kFine; first += kTogether)
            status = draw(first, std::min(kTogether, args_.draws - first));
        return status;
    }

    void with_replacement() {
        Best best[kTogether];
        for (std::int64_t first = 0; first < args_.draws; first += kTogether) {
            const std::int64_t count = std::min(kTogether, args_.draws - first);
            std::fill_n(best, count, Best{});
            row_.each([&](const Piece<T>& piece) {
                for (std::int64_t i = 0; i < count; ++i)
                    draw(piece, row_.kept, row_.m, row_.beta, words(first + i), best[i]);
            });
            for (std::int64_t i = 0; i < count; ++i) put(first + i, distance(best[i].z, row_.m, row_.beta), best[i].at);
        }
    }
    void without_replacement() {
        thread_local std::vector<Ranked> all;
        Top top(all, args_.draws, row_.m);
        const Philox noise = words(0);
        row_.each([&](const Piece<T>& piece) { draw(piece, row_.kept, row_.m, row_.beta, noise, top); });
        top.finish();
        for (std::int64_t i = 0; i < args_.draws; ++i)
            put(i, all[static_cast<std::size_t>(i)].x, all[static_cast<std::size_t>(i)].at);
    }

  public:
    explicit Draws(Group<T, 1>& group)
        : args_(group.args),
          row_(group),
          at_(group.first),
          begin_(args_.shards.first()),
          index_(&integer_at(args_.index, args_, at_)),
          logprob_(args_.logprob ? RowOf{args_, at_}.start(args_.logprob) : nullptr) {}

    Status run() {
        Filters<T> filters(row_, args_, true);
        if (row_.length > 0 && !filters.sound()) return fail(kOutOfRange);
        const bool filtered = Filters<T>::any_asked(args_), counts = args_.logprob || !args_.replace;
        if (!filtered && !counts && !row_.frozen()) {
            const Status status =
                together([this](std::int64_t first, std::int64_t count) { return at_once(first, count); });
            return status == kFine ? kFine : fail(status);
        }
        if (filters.lists_the_top() ? filters.nan_or_top() : row_.nan_or_maximum()) return fail(kNaNs);
        if (row_.m == -kInf) return fail(kEmpty);
        if (row_.frozen()) {
            if (!args_.replace && args_.draws > 1) return fail(kTooMany);
            const std::int64_t top = row_.first_maximum();
            p_.r = 0;
            for (std::int64_t i = 0; i < args_.draws; ++i) put(i, 0, top);
            put_size(1);
            return kFine;
        }
        if (filtered) filters();
        if (counts || (filtered && args_.draws > 1)) {
            p_ = moments(row_);
            put_size(p_.count);
            if (!args_.replace && args_.draws > p_.count) return fail(kTooMany);
            // For many draws from few scores, the scores are first copied to contiguous memory.
            if (!row_.list && args_.draws > 1 && p_.count <= row_.length / 8) filters.list_what_is_left();
        }
        if (args_.replace) with_replacement();
        else if (args_.draws > 0) without_replacement();
        return kFine;
    }

    // Writes the draws from this process's part of the row.
    void of_part(Part* parts) {
        Best best[kTogether];
        together([&](std::int64_t first, std::int64_t count) {
            std::fill_n(best, count, Best{});
            bool nan;
            if (row_.frozen()) {
                nan = row_.nan_or_maximum();
                const std::int64_t top = nan || row_.m == -kInf ? -1 : row_.first_maximum();
                std::fill_n(best, count, Best{row_.m, 0, top < 0 ? -1 : begin_ + top});
            } else {
                nan = nan_or_best(first, count, best);
            }
            for (std::int64_t i = 0; i < count; ++i) parts[first + i] = {best[i], nan, row_.infinite};
            return kFine;
        });
    }
    // Makes the draws of the row from those of the processes, from left to right. `step` is the number of all draws of
    // a process.
    Status of_parts(const Part* parts, std::int64_t step) {
        for (std::int64_t i = 0; i < args_.draws; ++i) {
            Part found;
            for (std::int64_t p = 0; p < args_.shards.count; ++p) take(found, parts[p * step + i]);
            if (found.nan || found.best.at < 0) return fail(found.nan ? kNaNs : kEmpty);
            put(i, 0, found.best.at);
        }
        return kFine;
    }
    void take(Part& found, const Part& next) const {
        const std::int32_t nan = found.nan | next.nan;
        if (next.infinite > found.infinite) found = next;
        else if (next.infinite == found.infinite && next.best.at >= 0) {
            const Best& b = next.best;
            if (!row_.frozen()) found.best.offer(b.z, b.noise, b.at, row_.beta);
            else if (found.best.at < 0 || b.z > found.best.z) found.best = b;
        }
        found.nan = nan;
    }
};

// Makes all draws of all rows. Each process draws from its part of a row. The best of these draws is the one of the
// row.
template <class T> void draw_over_processes(const Args& args) {
    const Shards& shards = args.shards;
    const std::int64_t count = args.rows.total * args.draws;
    std::vector<Part> mine(static_cast<std::size_t>(count)), all(static_cast<std::size_t>(count * shards.count));
    const Frame<T> frame(args, 1);
    each_group<Group<T, 1>>(
        frame, [&](Group<T, 1>& group) { Draws<T>(group).of_part(mine.data() + group.first * args.draws); });
    shards.gather(shards, mine.data(), 0, count * static_cast<std::int64_t>(sizeof(Part)), all.data());
    each_group<Group<T, 1>>(frame, [&](Group<T, 1>& group) {
        args.status[group.first] = Draws<T>(group).of_parts(all.data() + group.first * args.draws, count);
    });
}

// Writes 1 for kept scores, 0 for others.
template <class T> Status mark(Group<T, 1>& group) {
    const Args& args = group.args;
    Row<T> row(group);
    Filters<T> filters(row, args, false);
    if (row.length > 0 && !filters.sound()) return kOutOfRange;
    const bool nan = row.nan_or_maximum();
    if (!nan && row.m > -kInf) {
        if (row.frozen()) row.kept = {static_cast<T>(row.m), row.first_maximum()};
        else filters();
    }
    T* marks = scratch(kOther).get<T>(kBlock);
    for (std::int64_t b = 0; b < group.blocks(); ++b) {
        const T* z = row.scores(b);
        const std::int64_t from = group.begin(b), n = group.end(b) - from;
        for (std::int64_t i = 0; i < n; ++i) {
            bool left = nan ? !(z[i] == -std::numeric_limits<T>::infinity()) : row.kept(z[i], from + i);
            if (left && !row.band.everything())
                left = row.band(distance(static_cast<double>(z[i]), row.m, row.beta), from + i);
            marks[i] = left ? T{1} : T{0};
        }
        write(args, args.out, group.first, 1, from, group.end(b), marks, group.pitch);
    }
    return kFine;
}

// Computes the Gumbel noise of whole rows, or only their random words, or the noise from given random words.
void put_noise(const Args& args) {
    const std::int64_t cols = args.cols.total;
    parallel_for(args.threads, args.rows.total, [&](std::int64_t begin, std::int64_t end) {
        std::uint32_t w1[kChunk] = {}, w2[kChunk] = {};
        double g[kChunk];
        for (std::int64_t row = begin; row < end; ++row) {
            const Philox words = words_of(args, row, args.draws);
            for (std::int64_t from = 0; from < cols; from += kChunk) {
                const std::int64_t n = std::min<std::int64_t>(kChunk, cols - from);
                if (args.words && args.out) {
                    for (std::int64_t i = 0; i < n; ++i) {
                        w1[i] = static_cast<std::uint32_t>(args.words[row * cols + from + i] >> 32);
                        w2[i] = static_cast<std::uint32_t>(args.words[row * cols + from + i]);
                    }
                } else {
                    words.adjacent(args.first + from, 0, w1);
                    words.adjacent(args.first + from, 1, w2);
                }
                if (!args.out) {
                    for (std::int64_t i = 0; i < n; ++i)
                        args.words[row * cols + from + i] = std::uint64_t{w1[i]} << 32 | w2[i];
                    continue;
                }
                for (int i = 0; i < kChunk; i += kLanes) gumbel(w1 + i, w2 + i).store(g + i);
                write(args, args.out, row, 1, from, from + n, g, cols);
            }
        }
    });
}

template <class T> void run_as(const Args& args) {
    if (args.shards) return draw_over_processes<T>(args);
    each_group<Group<T, 1>>(Frame<T>(args, 1), [&](Group<T, 1>& group) {
        args.status[group.first] = args.index ? Draws<T>(group).run() : mark(group);
    });
}

}  // namespace

void run(const Args& args) {
    const FloatEnvironment environment;
    if (!args.z) put_noise(args);
    else if (args.z.type == Type::f64) run_as<double>(args);
    else run_as<float>(args);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::sample
