// What the binding module hands to the kernels of an instruction set: plain data, no Python and no vectors.
//
// A call is a job over `rows` rows of `cols` scores. Every operand is a pointer with one stride for each dimension of
// the rows and of the columns, so any axis, any tuple of axes and any strides are the same to a kernel.
#pragma once

#include <cstdint>

namespace softargmax {

enum class Type : std::uint8_t { f16, bf16, f32, f64, boolean };
constexpr int kTypeBytes[] = {2, 2, 4, 8, 1};

enum class Op : std::uint8_t {
    softmax,
    log_softmax,
    logsumexp,        // the smooth maximum lse / beta
    fold,             // the state alone, carried on from `m`, `r`
    apply_softmax,    // from a given state
    apply_log_softmax,
    entropy,          // of the softmax, in nats
    expectation,      // other = v: <p, v>; without it, of the positions
    kl_divergence,    // other = the scores of q, in nats
    softmax_vjp,      // z = p, other = g:      out = beta p (g - <p, g>)
    log_softmax_vjp,  // z = log p, other = g:  out = beta (g - p sum g)
    logcumsumexp,
};

// Scores to a block: 16 KiB of float32, half of the smallest first-level cache. Rows are cut at multiples of it.
constexpr std::int64_t kBlock = 4096;

constexpr int kMaxDims = 64;  // NumPy's own limit

struct Shape {
    int dims = 0;
    std::int64_t size[kMaxDims];
    std::int64_t total = 1;
};

struct Operand {
    char* data = nullptr;  // null: absent
    Type type = Type::f64;
    std::int64_t row[kMaxDims];  // strides in elements; 0 where the operand is broadcast
    std::int64_t col[kMaxDims];
    explicit operator bool() const { return data != nullptr; }
};

struct Job {
    Op op;
    Shape rows, cols;
    // Segments: the rows are `segments` times `heads`; segment s has the scores from offsets[s] to offsets[s + 1].
    const std::int64_t* offsets = nullptr;
    std::int64_t segments = 0, heads = 1;
    Operand z, other, where, weights, out;
    Operand hi, lo;       // beta, double
    Operand m, r, low;    // the state, double: read by apply, read and written by fold
    Operand lse;          // written by softmax and log_softmax where wanted, read by the vjps: in nats
    int threads = 1;
    bool streaming = false;  // whether non-temporal stores pay on this processor, for a result of this size
};

// A loss: scores, and what stands beside them. Numbers per row lie one after the other, in double.
struct LossJob : Job {
    const std::int64_t* target = nullptr;  // a class per row; null: `other` holds probabilities
    std::int64_t ignore_index = 0;         // its class counts nothing
    Operand weight;                        // one per class, broadcast along the rows
    double label_smoothing = 0, z_loss = 0, softcap = 0;  // softcap 0: none
    bool folds = true;         // the states are made of the scores, and written; else they are given
    double* states = nullptr;  // m, r, low of each row
    double *loss = nullptr, *lse = nullptr;  // null: not wanted
    double least = 0;              // probabilities of this and below are 0 to the gradient
    const double* seed = nullptr;  // what the gradient into `out` is multiplied by
    std::int64_t seed_stride = 0;  // 0: one for all rows
};

// A sparse map: scores to `out`, or p in `z` and an incoming gradient in `other` to that of the scores. Numbers per row
// lie one after the other.
struct SparseJob : Job {
    Operand alpha;                    // one per row, double, at least 1
    Operand tau;                      // written where wanted, read by the gradient
    std::int64_t* support = nullptr;  // so are the numbers of p > 0
    bool gradient = false;
    // Its loss, where there is a target: then `out` is seed (p - target).
    const std::int64_t* target = nullptr;
    std::int64_t ignore_index = 0;
    double* roots = nullptr;  // five numbers (kernels.cpp), written, or read where they are given
    bool given = false;
    double* loss = nullptr;
    const double* seed = nullptr;
    std::int64_t seed_stride = 0;  // 0: one for all rows
};

// Draws from the softmax of rows; where no index is asked for, 1 in `out` where the filters leave a score and 0 where
// not; without scores, Gumbel noise into `out`, or the random words themselves.
struct SampleJob : Job {
    Operand top_k, top_p, min_p, typical_p, epsilon, eta;  // double, one per row or one for all; absent: no such filter
    bool joint = false;  // each filter sees the whole row, not what the one before has left
    std::uint64_t seed = 0;
    const std::int64_t* stream = nullptr;  // one per row; null: its index
    std::int64_t draws = 1;  // of each row; of noise: which one
    bool replace = true;
    std::int64_t* index = nullptr;  // rows times draws; -1 in a row that cannot be drawn from
    double* logprob = nullptr;  // rows times draws; null: not wanted
    std::int64_t* support = nullptr;  // how many could be drawn; null: not wanted
    std::uint8_t* status = nullptr;  // of each row, 0 if all is well
    std::uint64_t* words = nullptr;  // of noise: written if there is no `out`, else what it is made of
    std::int64_t first = 0;  // the column that the words start at
};

// A product of matrices, out = A B + bias, or out + A B; out is float64 where A or B is, else float32, its rows
// contiguous.
struct Factor2D {
    char* data = nullptr;
    Type type = Type::f32;
    std::int64_t row = 0, col = 0;  // strides in elements
};
struct ProductJob {
    Factor2D a, b;
    std::int64_t rows = 0, cols = 0, depth = 0;
    char* out = nullptr;
    std::int64_t pitch = 0;  // from one row of `out` to the next, in elements
    const char* bias = nullptr;  // `cols` numbers of out's type
    bool adds = false;
    bool sparse = false;  // A has many zeros, and B is finite: tiles of zeros are left out
    int threads = 1;
};

// Attention: of every entry of a batch, `heads` heads of queries, of which heads / groups beside each other share one
// of keys and values. An operand's `row` strides run over the batch, the heads and the queries or keys, its `col` over
// the rest.
struct AttendJob {
    Shape batch;
    std::int64_t heads = 0, groups = 0, queries = 0, keys = 0, width = 0, values = 0;
    Operand q, k, v, out;
    Operand scale;  // double, one per query
    Operand mask, bias;  // of scores; absent: none
    const double* sink = nullptr;  // one per head; null: none
    const std::int64_t* lengths = nullptr;  // of keys, one per entry of the batch; null: all
    // Pages of keys: entry e has its key j in row j % page of page table[e * pages + j / page] of k and v, whose first
    // `row` stride runs over pages.
    const std::int64_t* table = nullptr;
    std::int64_t pages = 0, page = 0;
    std::int64_t left = -1, right = -1;  // how many keys a query sees beside its own place; -1: all
    double softcap = 0;  // 0: none
    double* lse = nullptr;  // one per query, in order
    double dropout = 0;  // the share of p that is dropped
    const std::uint64_t* seeds = nullptr;  // by which, one per entry and head
    // Written, one per query, or of gradients per head of keys: 1 where a number was not finite, so that what was
    // written is not to be used. And whether there is any.
    std::uint8_t* strange = nullptr;
    bool any_strange = false;
    int threads = 1;
};

// Its gradients, from its output and lse.
struct AttendGradientJob : AttendJob {
    Operand seed;  // into the output
    const double* to_lse = nullptr;  // into lse; null: none
    Operand dq, dk, dv;
    Operand dbias;  // of the kernels' own type; strides are 0 where one number is for many scores: added to
    double* dscale = nullptr;  // one per query
    double* delta = nullptr;  // <seed, out> - to_lse, one per query
};

// The output room's are its own (output/jobs.hpp).
struct DotsJob;
struct SumsJob;
struct CoinsJob;
struct StepsJob;
struct DrawsJob;

// Operations that add up something under the softmax of each row.
inline bool is_sum(Op op) { return op == Op::entropy || op == Op::expectation || op == Op::kl_divergence; }
// Operations that give one number to a row (or a state), even to a row without scores.
inline bool is_reduction(Op op) { return op == Op::logsumexp || op == Op::fold || is_sum(op); }

constexpr int kMultiplyAdds = 16;  // to a round of `multiply_adds`

// The entries of an instruction set, and of each that was compiled.
struct Entries {
    void (*run)(const Job&);
    void (*run_loss)(const LossJob&);
    void (*run_sparse)(const SparseJob&);
    void (*run_sample)(const SampleJob&);
    void (*run_product)(const ProductJob&);
    void (*run_attend)(AttendJob&);
    void (*run_attend_gradient)(AttendGradientJob&);
    void (*run_dots)(const DotsJob&);
    void (*run_sums)(const SumsJob&);
    void (*run_coins)(const CoinsJob&);
    void (*run_steps)(StepsJob&);
    void (*run_draws)(const DrawsJob&);
    double (*multiply_adds)(std::int64_t);
};
#define X(name)                                       \
    namespace name {                                  \
    void run(const Job& job);                         \
    void run_loss(const LossJob& job);                \
    void run_sparse(const SparseJob& job);            \
    void run_sample(const SampleJob& job);            \
    void run_product(const ProductJob& job);          \
    void run_attend(AttendJob& job);                  \
    void run_attend_gradient(AttendGradientJob& job); \
    void run_dots(const DotsJob& job);                \
    void run_sums(const SumsJob& job);                \
    void run_coins(const CoinsJob& job);              \
    void run_steps(StepsJob& job);                    \
    void run_draws(const DrawsJob& job);              \
    double multiply_adds(std::int64_t rounds);        \
    }
#ifdef SOFTARGMAX_ISA_LIST
SOFTARGMAX_ISA_LIST
#endif
#undef X

}  // namespace softargmax
