// The room's operations over all rows of a job. Compiled once for each instruction set.
//
// Every operation has two halves: fold the blocks of a row into its state, merged from left to right, then apply the
// state to each block. Rows go to threads in groups; few long rows are split by the same blocks, so that neither threads
// nor pieces change a bit.
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/native/threads.hpp"
#include "core/native/tiles.hpp"
#include "normalize/rows.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {
namespace {

// Memory of one thread, kept between calls.
class Scratch {
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    std::unique_ptr<void, Free> memory_;
    std::size_t bytes_ = 0;

  public:
    template <class T> T* get(std::int64_t count) {
        const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 4095) & ~std::size_t{4095};
        if (bytes > bytes_) {
            memory_.reset(std::aligned_alloc(4096, bytes));
            bytes_ = memory_ ? bytes : 0;
            if (!memory_) std::abort();  // out of memory for a tile: nothing sensible is left to do
        }
        return static_cast<T*>(memory_.get());
    }
};
enum Slot { kScores, kOther, kMask, kWeights, kTerms, kResult, kSlots };
Scratch& scratch(Slot slot) {
    thread_local Scratch slots[kSlots];
    return slots[slot];
}

double at(const Operand& x, const Job& job, std::int64_t row) {
    double value = 0;
    with_type(x.type, x.data, [&](auto* base) { value = convert<double>(base[offset_of(row, job.rows, x.row)]); });
    return value;
}
void put(const Operand& x, const Job& job, std::int64_t row, double value) {
    with_type(x.type, x.data, [&](auto* base) {
        using S = std::remove_reference_t<decltype(*base)>;
        if constexpr (!std::is_same_v<S, bool>) base[offset_of(row, job.rows, x.row)] = convert<S>(value);
    });
}

// How the scores of a row are to be read: negated where beta < 0, all equal where beta = 0 (infinities stay).
struct RowScale {
    Scale beta;
    bool negate = false, flat = false, undefined = false;
};
RowScale scale_of(const Job& job, std::int64_t row) {
    RowScale s;
    if (!job.hi || job.op >= Op::softmax_vjp) return s;  // the vjps read p, which is not negated with beta
    const double hi = at(job.hi, job, row), lo = at(job.lo, job, row);
    if (hi != hi) s.undefined = true;
    else if (hi == 0) s.flat = true;
    else s.beta = hi < 0 ? Scale{-hi, -lo} : Scale{hi, lo};
    s.negate = hi < 0;
    return s;
}

// What is the same for all groups of a job: decided once, since a short row costs no more than such decisions.
template <class T> struct Frame {
    const Job& job;
    Groups groups;
    bool z_direct, other_direct, out_direct;  // memory is what the formulas want
    bool one_scale, changed;
    RowScale scale;

    Frame(const Job& j, int size)
        : job(j),
          groups(j, size),
          z_direct(size == 1 && is_contiguous<T>(j.z, j.cols)),
          other_direct(size == 1 && is_contiguous<T>(j.other, j.cols)),
          out_direct(size == 1 && is_contiguous<T>(j.out, j.cols)),
          one_scale(is_constant(j.hi) && is_constant(j.lo)),
          changed(j.where || j.weights) {
        if (!one_scale || j.rows.total == 0) return;
        scale = scale_of(j, 0);
        changed = changed || scale.negate || scale.flat;
    }
    bool is_constant(const Operand& x) const {
        bool constant = true;
        for (int d = 0; x && d < job.rows.dims; ++d) constant = constant && x.row[d] == 0;
        return constant;
    }
};

// A group of rows in the hands of one thread, one block at a time.
template <class T, int Size> struct Group {
    const Frame<T>& frame;
    const Job& job;
    std::int64_t first;
    int count;
    std::int64_t length;  // of its rows
    bool changed;
    RowScale scale[Size];
    State state[Size];
    double mean[Size] = {};  // sum of w z, for rows whose scores are read as equal
    const T* scores = nullptr;
    const T* other = nullptr;
    T* result = nullptr;
    static constexpr std::int64_t pitch = kBlock + kSide;  // rows of a tile do not fall on the same sets of a cache

    Group(const Frame<T>& f, std::int64_t index)
        : frame(f),
          job(f.job),
          first(f.groups.first(index)),
          count(f.groups.count(index)),
          length(RowOf{f.job, first}.length()),
          changed(f.changed) {
        for (int g = 0; g < count; ++g) {
            scale[g] = f.one_scale ? f.scale : scale_of(job, first + g);
            changed = changed || scale[g].negate || scale[g].flat;
        }
    }
    std::int64_t blocks() const { return (length + kBlock - 1) / kBlock; }
    std::int64_t begin(std::int64_t block) const { return block * kBlock; }
    std::int64_t end(std::int64_t block) const { return std::min(length, (block + 1) * kBlock); }
    T* memory(const Operand& x, std::int64_t from) const { return reinterpret_cast<T*>(RowOf{job, first}.start(x)) + from; }

    void load(std::int64_t block) {
        const std::int64_t b = begin(block), e = end(block);
        scores = load(job.z, frame.z_direct, b, e, kScores);
        if (job.other) other = load(job.other, frame.other_direct, b, e, kOther);
        if (changed) transform(b, e);
    }
    const T* load(const Operand& x, bool direct, std::int64_t b, std::int64_t e, Slot slot) {
        if (direct) return memory(x, b);
        T* tile = scratch(slot).get<T>(Size * pitch);
        read(job, x, first, count, b, e, tile, pitch);
        return tile;
    }
    const T* load_if_there(const Operand& x, std::int64_t b, std::int64_t e, Slot slot) {
        return x ? load(x, false, b, e, slot) : nullptr;
    }
    // The scores as the formulas want them: beta > 0, everything outside the support at -inf.
    void transform(std::int64_t b, std::int64_t e) {
        T* tile = scratch(kScores).get<T>(Size * pitch);
        if (scores != tile) std::copy_n(scores, e - b, tile);
        scores = tile;
        const T* mask = load_if_there(job.where, b, e, kMask);
        const T* weights = load_if_there(job.weights, b, e, kWeights);
        for (int g = 0; g < count; ++g) {
            const std::int64_t from = g * pitch, to = from + e - b;
            if (scale[g].negate)
                for (std::int64_t i = from; i < to; ++i) tile[i] = -tile[i];
            if (weights || scale[g].flat)
                for (std::int64_t i = from; i < to; ++i)
                    if (!mask || mask[i] != 0) weigh(tile[i], weights ? weights[i] : T{1}, scale[g], mean[g]);
            if (mask)
                for (std::int64_t i = from; i < to; ++i) tile[i] = mask[i] != 0 ? tile[i] : -std::numeric_limits<T>::infinity();
        }
    }
    // z -> beta z + log w: weights belong to the measure, not to beta. At beta = 0 all finite scores are equal; infinities
    // stay.
    static void weigh(T& z, T w, const RowScale& s, double& mean) {
        if (w == 0) {
            z = -std::numeric_limits<T>::infinity();
            return;
        }
        if (s.flat && z - z == 0) {
            mean += static_cast<double>(w) * static_cast<double>(z);
            z = 0;
        }
        if (w == 1 && s.beta.unit()) return;
        const Twofold x = std::isinf(z) ? Twofold{static_cast<double>(z), 0} : times(static_cast<double>(z), s.beta);
        z = static_cast<T>(x.hi + (x.lo + log_scalar(static_cast<double>(w))));
    }
    Scale beta(int g) const { return job.weights ? Scale{} : scale[g].beta; }

    State fold_row(int g, std::int64_t block) const { return fold(scores + g * pitch, end(block) - begin(block), beta(g)); }

    Target<T> target(int g, std::int64_t block, const T* z) {
        result = frame.out_direct ? memory(job.out, begin(block)) : scratch(kResult).get<T>(Size * pitch);
        return {result + g * pitch, frame.z_direct ? z + length : z, job.streaming && frame.out_direct};
    }
    void flush(std::int64_t block) {
        if (!frame.out_direct) write(job, job.out, first, count, begin(block), end(block), result, pitch);
    }
};

// ---- softmax, log_softmax, logsumexp and their halves -------------------------------------------------------------

bool folds(Op op) { return op <= Op::fold; }
bool is_log(Op op) { return op == Op::log_softmax || op == Op::apply_log_softmax; }

template <class T, int Size> void start(Group<T, Size>& group, int g) {
    const Job& job = group.job;
    State& s = group.state[g];
    s = State{};
    if (!job.m) return;
    s.m = at(job.m, job, group.first + g);
    s.r = at(job.r, job, group.first + g);
    s.low = at(job.low, job, group.first + g);
}

// What a folded row gives apart from probabilities.
template <class T, int Size> void finish(Group<T, Size>& group, int g) {
    const Job& job = group.job;
    const std::int64_t row = group.first + g;
    const RowScale& scale = group.scale[g];
    State& s = group.state[g];
    if (scale.undefined) s.r = kNaN;
    if (job.op == Op::fold) {
        put(job.m, job, row, s.m);
        put(job.r, job, row, s.r);
        put(job.low, job, row, s.low);
    }
    if (job.lse) put(job.lse, job, row, finalize(s, group.beta(g)).hi);
    if (job.op != Op::logsumexp) return;
    const double lse = finalize(s, Scale{}).hi;
    double value;
    if (scale.flat) value = lse != 0 ? lse * kInf : group.mean[g];  // the limit of lse / beta
    else if (job.weights) value = std::isinf(scale.beta.hi) ? s.m : lse / scale.beta.hi * (1.0 - scale.beta.lo / scale.beta.hi);
    else value = smooth_maximum(s, scale.beta);
    put(job.out, job, row, scale.negate ? -value : value);
}

template <class T, int Size> void apply_block(Group<T, Size>& group, std::int64_t block) {
    for (int g = 0; g < group.count; ++g) {
        const T* z = group.scores + g * group.pitch;
        const std::int64_t n = group.end(block) - group.begin(block);
        const auto to = group.target(g, block, z);
        if (is_log(group.job.op)) apply<Log::yes>(z, n, group.state[g], group.beta(g), to);
        else apply<Log::no>(z, n, group.state[g], group.beta(g), to);
    }
    group.flush(block);
}

template <class T, int Size> void whole_group(Group<T, Size>& group) {
    const Job& job = group.job;
    const std::int64_t blocks = group.blocks();
    for (int g = 0; g < group.count; ++g) start(group, g);
    if (job.op == Op::softmax && blocks == 1) {
        group.load(0);
        for (int g = 0; g < group.count; ++g) {
            const T* z = group.scores + g * group.pitch;
            T* store = scratch(kTerms).get<T>(2 * kBlock);
            const auto to = group.target(g, 0, z);
            group.state[g] = softmax_short(z, group.length, group.beta(g), store, to);
            finish(group, g);
            if (group.scale[g].undefined) apply_limit<Log::no>(z, group.length, group.state[g], to.out);
        }
        return group.flush(0);
    }
    for (std::int64_t b = 0; b < blocks && folds(job.op) && job.z; ++b) {
        group.load(b);
        for (int g = 0; g < group.count; ++g) group.state[g] = merge(group.state[g], group.fold_row(g, b), group.beta(g));
    }
    for (int g = 0; g < group.count; ++g) finish(group, g);
    if (job.op == Op::logsumexp || job.op == Op::fold) return;
    for (std::int64_t b = 0; b < blocks; ++b) {
        if (blocks > 1 || !folds(job.op)) group.load(b);
        apply_block(group, b);
    }
}

bool any_flat(const Job& job) {
    for (std::int64_t row = 0; row < job.rows.total; ++row)
        if (scale_of(job, row).flat) return true;
    return false;
}

template <class T, int Size> void normalize(const Job& job) {
    const Frame<T> frame(job, Size);
    const std::int64_t blocks = (job.cols.total + kBlock - 1) / kBlock;
    if (job.offsets || frame.groups.total >= job.threads || blocks < 2 || any_flat(job)) {
        parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                Group<T, Size> group(frame, i);
                whole_group(group);
            }
        });
        return;
    }
    // Few long rows: blocks go to threads, their states are merged in order by one.
    std::vector<State> pieces(static_cast<std::size_t>(frame.groups.total * blocks * Size)), rows(static_cast<std::size_t>(job.rows.total));
    const auto each_block = [&](auto body) {
        parallel_for(job.threads, frame.groups.total * blocks, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t unit = begin; unit < end; ++unit) {
                Group<T, Size> group(frame, unit / blocks);
                group.load(unit % blocks);
                body(group, unit % blocks, pieces.data() + unit * Size);
            }
        });
    };
    if (folds(job.op))
        each_block([&](Group<T, Size>& group, std::int64_t block, State* piece) {
            for (int g = 0; g < group.count; ++g) piece[g] = group.fold_row(g, block);
        });
    for (std::int64_t i = 0; i < frame.groups.total; ++i) {
        Group<T, Size> group(frame, i);
        for (int g = 0; g < group.count; ++g) {
            start(group, g);
            for (std::int64_t b = 0; b < blocks && folds(job.op); ++b)
                group.state[g] = merge(group.state[g], pieces[static_cast<std::size_t>((i * blocks + b) * Size + g)], group.beta(g));
            finish(group, g);
            rows[static_cast<std::size_t>(group.first + g)] = group.state[g];
        }
    }
    if (job.op == Op::logsumexp || job.op == Op::fold) return;
    each_block([&](Group<T, Size>& group, std::int64_t block, State*) {
        for (int g = 0; g < group.count; ++g) group.state[g] = rows[static_cast<std::size_t>(group.first + g)];
        apply_block(group, block);
    });
}

// ---- derivatives --------------------------------------------------------------------------------------------------

template <class T, int Size> void vjp(const Job& job) {
    const bool log = job.op == Op::log_softmax_vjp;
    const Frame<T> frame(job, Size);
    parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            Group<T, Size> group(frame, i);
            double sum[Size] = {}, beta[Size] = {};
            const std::int64_t blocks = group.blocks();
            for (std::int64_t b = 0; b < blocks; ++b) {
                group.load(b);
                for (int g = 0; g < group.count; ++g) {
                    const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
                    const std::int64_t n = group.end(b) - group.begin(b);
                    sum[g] += log ? sum_in_support(x, y, n) : inner_product(x, y, n);
                }
            }
            // Rows with infinities, and T = 0, are constant where they are differentiable at all; NaN stays NaN.
            for (int g = 0; g < group.count; ++g) {
                beta[g] = job.hi ? at(job.hi, job, group.first + g) : 1;
                const double lse = job.lse ? at(job.lse, job, group.first + g) : 0;
                if (std::isinf(beta[g])) beta[g] = lse == lse ? 0 : 1;
                if (lse == kInf) beta[g] = 0;
            }
            for (std::int64_t b = 0; b < blocks; ++b) {
                if (blocks > 1) group.load(b);
                for (int g = 0; g < group.count; ++g) {
                    const T *x = group.scores + g * group.pitch, *y = group.other + g * group.pitch;
                    const std::int64_t n = group.end(b) - group.begin(b);
                    const auto to = group.target(g, b, x);
                    if (beta[g] == 0) std::fill_n(to.out, n, T{0});
                    else if (log) log_softmax_vjp(x, y, n, sum[g], beta[g], to);
                    else softmax_vjp(x, y, n, sum[g], beta[g], to);
                }
                group.flush(b);
            }
        }
    });
}

// ---- logcumsumexp ---------------------------------------------------------------------------------------------------

template <class T, int Size> void logcumsumexp(const Job& job) {
    const Frame<T> frame(job, Size);
    parallel_for(job.threads, frame.groups.total, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            Group<T, Size> group(frame, i);
            for (std::int64_t b = 0; b < group.blocks(); ++b) {
                group.load(b);
                for (int g = 0; g < group.count; ++g) {
                    const T* z = group.scores + g * group.pitch;
                    const auto to = group.target(g, b, z);
                    for (std::int64_t j = 0; j < group.end(b) - group.begin(b); ++j) {
                        group.state[g] = merge(group.state[g], State{static_cast<double>(z[j]), 0}, Scale{});
                        to.out[j] = static_cast<T>(finalize(group.state[g], Scale{}).hi);
                    }
                }
                group.flush(b);
            }
        }
    });
}

template <class T, int Size> void run_in_groups(const Job& job) {
    switch (job.op) {
        case Op::softmax_vjp:
        case Op::log_softmax_vjp: return vjp<T, Size>(job);
        case Op::logcumsumexp: return logcumsumexp<T, Size>(job);
        default: return normalize<T, Size>(job);
    }
}
template <class T> void run_as(const Job& job) {
    if (rows_are_adjacent(job, job.z)) run_in_groups<T, kGroup>(job);
    else run_in_groups<T, 1>(job);
}

}  // namespace

// The entry of this instruction set. Weights are taken in float64: log w would cost float32 its accuracy.
void run(const Job& job) {
    if (job.z.type == Type::f64 || job.weights) run_as<double>(job);
    else run_as<float>(job);
}

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
