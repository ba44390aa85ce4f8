// The loss of a last layer and its gradients, computed for a few rows (a part) at a time.
//
// The scores are z = h W^T + b. With dz, the gradient of the scores,
//
//     dh = dz W        dW = dz^T h        db = sum dz
//
// The scores of a part are overwritten with dz. A row of dh has the same bits in every batch. dW and db are summed over
// the parts. Every part packs W again, block by block: a packed copy of all of W would be larger than the memory that
// the function may use beyond inputs and gradients (an eighth of the scores).
#pragma once

#include <memory>

#include "loss/loss_row.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::loss {

using core::Factor2D;

// A matrix in memory, with its size.
struct Matrix2D : Factor2D {
    std::int64_t rows = 0, cols = 0;
    Matrix2D part(std::int64_t begin, std::int64_t end) const {
        Matrix2D x = *this;
        x.data += begin * row * kTypeBytes[static_cast<int>(type)];
        x.rows = end - begin;
        return x;
    }
    Matrix2D transposed() const { return {{data, type, col, row}, cols, rows}; }
};

template <class T> class LastLayer {
    LinearArgs& args_;
    const Matrix2D h_, w_;
    Matrix2D h_of_dw_ = h_, w_of_dh_ = w_;  // replaced by copies if h or W contains NaN or inf
    // This is no std::vector, because all instruction sets would share one compiled copy of its functions.
    using Numbers = std::unique_ptr<T[]>;
    Numbers finite_h_, finite_w_, bias_, finite_bias_, ones_;
    std::unique_ptr<std::int64_t[]> late_;  // the classes with nonfinite biases
    std::int64_t late_count_ = 0;
    bool h_is_tested_ = false, w_is_tested_ = false;

    template <class N> static std::unique_ptr<N[]> numbers(std::int64_t count) {
        return std::unique_ptr<N[]>(new N[static_cast<std::size_t>(count)]);
    }

    static Matrix2D matrix(T* data, std::int64_t rows, std::int64_t cols) {
        return {{reinterpret_cast<char*>(data), kTypeOf<T>, cols, 1}, rows, cols};
    }
    static bool is_finite(T x) { return x - x == 0; }

    // Replaces NaN and infinities by 0, in a copy of the matrix if it has any.
    static SOFTARGMAX_RARE void make_finite(Matrix2D& x, Numbers& to, bool& is_tested) {
        if (is_tested) return;
        is_tested = true;
        with_real_type(x.type, x.data, [&](auto* base) {
            const auto each = [&](auto visit) {
                for (std::int64_t i = 0; i < x.rows; ++i)
                    for (std::int64_t j = 0; j < x.cols; ++j) visit(convert<T>(base[i * x.row + j * x.col]));
            };
            bool finite = true;
            each([&](T value) { finite &= is_finite(value); });
            if (finite) return;
            to = numbers<T>(x.rows * x.cols);
            each([&, next = to.get()](T value) mutable { *next++ = is_finite(value) ? value : T{0}; });
        });
        if (to) x = matrix(to.get(), x.rows, x.cols);
    }
    void product(const Matrix2D& a, const Matrix2D& b, char* out, bool adds, bool sparse,
                 const T* bias = nullptr) const {
        if (a.rows == 0 || b.cols == 0) return;
        const std::int64_t work = a.rows * b.cols * std::max<std::int64_t>(a.cols, 1);
        core::product({a, b, a.rows, b.cols, a.cols, out, b.cols, reinterpret_cast<const char*>(bias), adds, sparse,
                       work < kParallelProduct ? 1 : args_.threads,
                       out == args_.dw && args_.streams_dw && !args_.row_shards});
    }
    char* row_of(char* x, std::int64_t row, std::int64_t width) const {
        return x + row * width * static_cast<std::int64_t>(sizeof(T));
    }

  public:
    explicit LastLayer(LinearArgs& args)
        : args_(args), h_{args.h, args.rows.total, args.width}, w_{args.w, args.cols.total, args.width} {
        if (!args.bias.data) return;
        bias_ = numbers<T>(w_.rows);
        finite_bias_ = numbers<T>(w_.rows);
        late_ = numbers<std::int64_t>(w_.rows);
        with_real_type(args.bias.type, args.bias.data, [&](auto* base) {
            for (std::int64_t k = 0; k < w_.rows; ++k) {
                const T value = bias_[k] = convert<T>(base[k * args.bias.row]);
                finite_bias_[k] = is_finite(value) ? value : T{0};
                if (!is_finite(value)) late_[late_count_++] = k;
            }
        });
    }

    // Computes the scores, without nonfinite biases.
    void scores(std::int64_t begin, std::int64_t end, T* z) {
        product(h_.part(begin, end), w_.transposed(), reinterpret_cast<char*>(z), false, false, finite_bias_.get());
    }
    // Adds the nonfinite biases, but not to infinite scores, because inf - inf is NaN. So a class with a bias of -inf
    // is outside the support, except in rows where its product h W^T is +inf.
    void add_late_biases(std::int64_t rows, T* z) {
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t k = 0; k < late_count_; ++k) {
                T& score = z[i * w_.rows + late_[k]];
                if (!std::isinf(score)) score += bias_[late_[k]];
            }
    }

    // Replaces nonfinite entries of h and W by 0 for the gradients. Nonfinite entries are only multiplied by entries of
    // dz that are 0 or NaN, and 0 times a nonfinite entry counts as 0. The replacement makes the bits of a row
    // independent of all other rows.
    //
    // W and h themselves are not read, because this would be slow: if a part has 3 rows, most of the time of the
    // product h W^T is the time of reading W. Instead, the scores in z are tested, before dz overwrites them. A
    // nonfinite entry of W makes all scores of its class nonfinite, so W is finite if the scores of one row are finite.
    // A nonfinite entry of h makes all scores of its row nonfinite, so h is finite if the scores of one class are
    // finite. The scores have no nonfinite biases yet.
    void finite_layer(std::int64_t rows, const T* z) {
        bool w = true, h = true;
        for (std::int64_t k = 0; k < w_.rows; ++k) w &= is_finite(z[k]);
        for (std::int64_t i = 0; w_.rows > 0 && i < rows; ++i) h &= is_finite(z[i * w_.rows]);
        if (!w) make_finite(w_of_dh_, finite_w_, w_is_tested_);
        if (!h) make_finite(h_of_dw_, finite_h_, h_is_tested_);
    }

    static void pass(const Shards& shards, Shards::Pass how, char* sums, std::int64_t count) {
        if (sums && shards.count > 1) shards.pass(shards, how, kTypeOf<T>, sums, count);
    }
    // Passes the sum for dh of some rows on, if classes are spread over processes.
    void pass_dh(Shards::Pass how, std::int64_t begin, std::int64_t end) const {
        if (args_.dh) pass(args_.shards, how, row_of(args_.dh, begin, args_.width), (end - begin) * args_.width);
    }
    // Calls each(rows of dW, first class, number of classes). If rows are spread over processes, it does so for a few
    // classes at a time: while a process adds to these, the next one adds to those before.
    template <class Each> void each_dw(const Each& each) const {
        const std::int64_t step = args_.row_shards.count > 1 ? classes_at_once(w_.rows, args_.width) : w_.rows;
        for (std::int64_t k = 0; args_.dw && k < w_.rows; k += step)
            each(row_of(args_.dw, k, args_.width), k, std::min(step, w_.rows - k));
    }
    // Starts to receive all sums, so that the process before this one does not wait for this one.
    void expect() {
        const std::int64_t rows = args_.shards.is_first() ? 0 : h_.rows;
        for (std::int64_t begin = 0, end = 0; begin < rows; begin = end) {
            end = end_of_part(begin, rows, args_.rows_at_once);
            pass_dh(Shards::Pass::expect, begin, end);
        }
        const Shards& shards = args_.row_shards;
        if (shards.is_first()) return;
        each_dw([&](char* dw, std::int64_t, std::int64_t count) {
            pass(shards, Shards::Pass::expect, dw, count * args_.width);
        });
        pass(shards, Shards::Pass::expect, args_.db, w_.rows);
    }
    // Computes dz W. If classes are spread over processes, each of them adds its products to the sum of those before
    // it, in the order in which one process adds them.
    void add_dh(std::int64_t begin, std::int64_t end, const Matrix2D& dz) {
        if (!args_.dh) return;
        const bool is_first = args_.shards.is_first();
        if (!is_first) pass_dh(Shards::Pass::from_previous, begin, end);
        product(dz, w_of_dh_, row_of(args_.dh, begin, args_.width), !is_first, true);
        pass_dh(Shards::Pass::to_next, begin, end);
    }
    // Computes dz^T h and the sum of dz. If rows are spread over processes, each of them adds its own to the sums of
    // those before it.
    void add_dw(std::int64_t begin, std::int64_t end, const Matrix2D& dz) {
        const Shards& shards = args_.row_shards;
        const bool is_first = begin == 0 && shards.is_first();
        const auto add = [&](char* sums, std::int64_t count, auto compute) {
            if (begin == 0 && !is_first) pass(shards, Shards::Pass::from_previous, sums, count);
            compute();
            if (end == h_.rows) pass(shards, Shards::Pass::to_next, sums, count);
        };
        each_dw([&](char* dw, std::int64_t k, std::int64_t count) {
            add(dw, count * args_.width,
                [&] { product(dz.transposed().part(k, k + count), h_of_dw_.part(begin, end), dw, !is_first, true); });
        });
        if (!args_.db) return;
        if (!ones_) {  // no later part has more rows than the first, so this vector of ones is long enough
            ones_ = numbers<T>(end - begin);
            std::fill_n(ones_.get(), end - begin, T{1});
        }
        add(args_.db, w_.rows, [&] { product(matrix(ones_.get(), 1, end - begin), dz, args_.db, !is_first, false); });
    }
    // Waits until all sums have come back. A process without rows passes them on.
    void finish() {
        const Shards& shards = args_.row_shards;
        if (shards && h_.rows == 0) add_dw(0, 0, matrix(reinterpret_cast<T*>(args_.z.data), 0, w_.rows));
        pass(shards, Shards::Pass::all_back, args_.dw ? args_.dw : args_.db, 0);
        pass_dh(Shards::Pass::all_back, 0, 0);
    }

    void add_gradients(std::int64_t begin, std::int64_t end, T* z) {
        const Matrix2D dz = matrix(z, end - begin, w_.rows);
        // While the first process computes dh, the others compute dW.
        if (args_.shards.is_first()) add_dh(begin, end, dz);
        add_dw(begin, end, dz);
        if (!args_.shards.is_first()) add_dh(begin, end, dz);
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::loss
