// Sums of the terms p_ikj = e^(beta (a_ik + b_kj - c_ij)) with weights:
//
//     to_c_ij = sum_k p_ikj x_ik y_kj      to_a_ik = sum_j p_ikj w_ij y_kj      to_b_kj = sum_i p_ikj w_ij x_ik
//
// p_ikj = A_ik B_kj / R_ij with the exponentials A and B of exponentials.hpp, so each sum is a matrix product. Elements
// (i, j) whose R is far from 1 are added by `Terms`.
#pragma once

#include "structure/log_product.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

// Computes 1 / R for n elements of a row, or 0 if R is not between 2^-near and 2^near, or w is not finite (0 times w
// would be NaN). True if some are 0.
SOFTARGMAX_CALLED inline bool inverse_ratios(const double* c, const double* w, std::int64_t n, double x_shift,
                                             const double* y_shift, Scale beta, double near, double* found) {
    const V none = V::all(0), most = V::all(kMostExact * kMostExact), bias = V::all(magic_of<double>(0));
    bool others = false;
    for (std::int64_t j = 0; j < n; j += kLanes) {
        const V c_ij = V::load_part(c + j, n - j, 0), w_ij = V::load_part(w + j, n - j, 0);
        const Parts<V> parts = parts_of(c_ij, beta);
        const V k = parts.k - V::all(x_shift) - V::load_part(y_shift + j, n - j, 0), size = c_ij * V::all(beta.hi);
        const auto near_1 = unless(unless(equal(w_ij - w_ij, none), above(k, V::all(near))), above(V::all(-near), k));
        const V ratio = keep(unless(near_1, above(size * size, most)), V::all(1) / (parts.e * power_of_two(k + bias)));
        ratio.store_part(found + j, n - j);
        others = others || std::any_of(found + j, found + std::min(n, j + kLanes), [](double x) { return x == 0; });
    }
    return others;
}

template <class T> class TermSums {
    static constexpr std::int64_t kWidth = 512;  // elements of a row that are converted at once
    const Matrix2D a_, b_, c_, w_, x_, y_;
    const Scale beta_;
    const int threads_;
    const std::int64_t rows_ = a_.rows, depth_ = a_.cols, cols_ = b_.cols;

    void read_weights(std::int64_t i, std::int64_t j, std::int64_t n, double* w) const {
        if (w_) w_.read(i, j, n, w, 0);
        else std::fill_n(w, n, 1.0);
    }
    // Calls body(row, column, count, 1 / R, w) for the pieces of all rows. True if some elements are left to `Terms`.
    template <class F> bool each_ratio(const double* x_shift, const double* y_shift, const F& body) const {
        std::atomic<bool> some{false};
        parallel_for(threads_, rows_, [&](std::int64_t begin, std::int64_t end) {
            double c[kWidth], w[kWidth], ratios[kWidth];
            bool here = false;
            for (std::int64_t i = begin; i < end; ++i)
                for (std::int64_t j = 0; j < cols_; j += kWidth) {
                    const std::int64_t n = std::min(kWidth, cols_ - j);
                    c_.read(i, j, n, c, 0);
                    read_weights(i, j, n, w);
                    here = inverse_ratios(c, w, n, x_shift[i], y_shift + j, beta_, kNear<T>, ratios) || here;
                    body(i, j, n, ratios, w);
                }
            if (here) some = true;
        });
        return some;
    }
    // Returns a power of two that is at least the largest finite weight.
    static double unit_of(const Matrix2D& weights) {
        const auto row = numbers<double>(weights.cols + kLanes);
        double most = 0;
        for (std::int64_t i = 0; i < weights.rows; ++i) {
            weights.read(i, 0, weights.cols, row.get(), 0);
            for (std::int64_t k = 0; k < weights.cols; ++k)
                if (row[k] - row[k] == 0) most = std::max(most, std::fabs(row[k]));
        }
        return most > 0 ? std::ldexp(1.0, std::clamp(std::ilogb(most) + 1, -1000, 1000)) : 1;
    }
    // Returns the numbers times weights / unit, or the numbers themselves without weights.
    const T* weighted(const Exponentials<T>& of, const Matrix2D& weights, std::int64_t rows, std::int64_t cols,
                      Numbers<T>& memory, double& unit) const {
        if (!weights) return of.data();
        memory = numbers<T>(rows * cols);
        unit = unit_of(weights);
        const double inverse_unit = 1 / unit;
        parallel_for(threads_, rows, [&](std::int64_t begin, std::int64_t end) {
            const auto row = numbers<double>(cols + kLanes);
            for (std::int64_t i = begin; i < end; ++i) {
                weights.read(i, 0, cols, row.get(), 0);
                for (std::int64_t k = 0; k < cols; ++k) {
                    const double number = static_cast<double>(of.data()[i * cols + k]);
                    memory[i * cols + k] = static_cast<T>(number == 0 ? 0 : number * (row[k] * inverse_unit));
                }
            }
        });
        return memory.get();
    }
    // Multiplies sums by the exponentials that they have in common.
    void scale(const T* by, double of_weights, std::int64_t count, T* sums) const {
        const double unit = of_weights / (kSquare * kBalance);
        parallel_for(threads_, count, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t k = begin; k < end; ++k) {
                const double number = static_cast<double>(by[k]) * unit;
                sums[k] = static_cast<T>(number == 0 ? 0 : number * static_cast<double>(sums[k]));
            }
        });
    }
    // 2^(2 lift), and a factor with which ratios times numbers neither overflow nor underflow.
    static constexpr double kSquare = sizeof(T) == 4 ? 0x1p104 : 0x1p800,
                            kBalance = sizeof(T) == 4 ? 0x1p-32 : 0x1p-400;

  public:
    TermSums(const Args& args, std::int64_t item, Scale beta, double sign, int threads)
        : a_(matrix(args.a, item, args.rows, args.depth, sign)),
          b_(matrix(args.b, item, args.depth, args.cols, sign)),
          c_(matrix(args.wide, item, args.rows, args.cols, sign)),
          w_(matrix(args.w, item, args.rows, args.cols)),
          x_(matrix(args.x, item, args.rows, args.depth)),
          y_(matrix(args.y, item, args.depth, args.cols)),
          beta_(beta),
          threads_(threads) {}

    void compute(const Matrix2D& to_c, const Matrix2D& to_a, const Matrix2D& to_b) const {
        if (beta_.hi == 0 || std::isinf(beta_.hi)) {
            for (const Matrix2D* to : {&to_c, &to_a, &to_b})
                if (*to) std::fill_n(to->template at<T>(0, 0), to->rows * to->cols, T{0});
            return add_others(to_c, to_a, to_b, nullptr, nullptr);
        }
        const Exponentials<T> x(a_, Line::row, beta_, threads_), y(b_, Line::column, beta_, threads_);
        Numbers<T> ratios, x_weighted, y_weighted;
        double x_unit = 1, y_unit = 1;
        const T* const of_a = to_c || to_b ? weighted(x, x_, rows_, depth_, x_weighted, x_unit) : nullptr;
        const T* const of_b = to_c || to_a ? weighted(y, y_, depth_, cols_, y_weighted, y_unit) : nullptr;
        bool some = false;
        if (to_a || to_b) {
            ratios = numbers<T>(rows_ * cols_);
            some = each_ratio(x.shift(), y.shift(),
                              [&](std::int64_t i, std::int64_t j, std::int64_t n, double* r, const double* w) {
                for (std::int64_t k = 0; k < n; ++k) r[k] = r[k] == 0 ? 0 : r[k] * w[k] * kBalance;
                convert(r, n, ratios.get() + i * cols_ + j);
            });
        }
        if (to_a) {
            T* const out = to_a.template at<T>(0, 0);
            product(factor(ratios.get(), cols_, 1), factor(of_b, 1, cols_), rows_, cols_, depth_, out, threads_);
            scale(x.data(), y_unit, rows_ * depth_, out);
        }
        if (to_b) {
            T* const out = to_b.template at<T>(0, 0);
            product(factor(of_a, 1, depth_), factor(ratios.get(), cols_, 1), depth_, rows_, cols_, out, threads_);
            scale(y.data(), x_unit, depth_ * cols_, out);
        }
        if (to_c) {
            T* const out = to_c.template at<T>(0, 0);
            product(factor(of_a, depth_, 1), factor(of_b, cols_, 1), rows_, depth_, cols_, out, threads_);
            some = each_ratio(x.shift(), y.shift(),
                              [&](std::int64_t i, std::int64_t j, std::int64_t n, const double* r, const double*) {
                T* const at = out + i * cols_ + j;
                for (std::int64_t k = 0; k < n; ++k)
                    at[k] =
                        static_cast<T>(r[k] == 0 ? 0 : r[k] / kSquare * static_cast<double>(at[k]) * (x_unit * y_unit));
            }) || some;
        }
        if (some) add_others(to_c, to_a, to_b, x.shift(), y.shift());
    }

  private:
    // Adds the elements (i, j) whose ratio is 0, or all elements without shifts.
    void add_others(const Matrix2D& to_c, const Matrix2D& to_a, const Matrix2D& to_b, const double* x_shift,
                    const double* y_shift) const {
        if (to_c || to_b) add_columns(to_c, to_b, x_shift, y_shift);
        if (!to_a) return;
        const TermSums turned(*this, true);
        turned.add_columns({}, to_a.transposed(), y_shift, x_shift);
    }
    // The sums of the transposed product: c^T is the product of b^T and a^T.
    TermSums(const TermSums& of, bool)
        : a_(of.b_.transposed()),
          b_(of.a_.transposed()),
          c_(of.c_.transposed()),
          w_(of.w_.transposed()),
          x_(of.y_.transposed()),
          y_(of.x_.transposed()),
          beta_(of.beta_),
          threads_(of.threads_) {}

    SOFTARGMAX_CALLED
    void add_columns(const Matrix2D& to_c, const Matrix2D& to_b, const double* x_shift, const double* y_shift) const {
        parallel_each(threads_, (cols_ + kLanes - 1) / kLanes, [&](std::int64_t pack) {
            const std::int64_t j = pack * kLanes, n = std::min(kLanes, cols_ - j), size = depth_ * kLanes;
            const auto b = numbers<double>(size + 1), y = numbers<double>(size + 1), sums = numbers<double>(size + 1);
            const auto x = numbers<double>(depth_ + kLanes);
            std::fill_n(sums.get(), size, 0.0);
            std::fill_n(y.get(), size, 1.0);
            std::fill_n(x.get(), depth_, 1.0);
            read_columns(b_, j, b.get(), -kInf);
            if (y_) read_columns(y_, j, y.get(), 0);
            Terms terms(depth_, beta_);
            for (std::int64_t i = 0; i < rows_; ++i) {
                double c[kLanes], w[kLanes], done[kLanes] = {}, left[kLanes] = {}, found[kLanes];
                c_.read(i, j, n, c, 0);
                read_weights(i, j, n, w);
                if (x_shift && !inverse_ratios(c, w, n, x_shift[i], y_shift + j, beta_, kNear<T>, done)) continue;
                for (std::int64_t g = 0; g < n; ++g) left[g] = done[g] == 0;
                if (x_) x_.read(i, 0, depth_, x.get(), 0);
                terms.load(a_, i, b.get());
                const auto shares = terms.shares(c);
                terms.accumulate(shares, V::load(left), V::load(w), x.get(), y.get(), sums.get()).store(found);
                for (std::int64_t g = 0; to_c && g < n; ++g) add(to_c, i, j + g, found[g]);
            }
            for (std::int64_t k = 0; to_b && k < depth_; ++k)
                for (std::int64_t g = 0; g < n; ++g) add(to_b, k, j + g, sums[k * kLanes + g]);
        });
    }
    static void add(const Matrix2D& to, std::int64_t i, std::int64_t j, double x) {
        T* const at = to.template at<T>(i, j);
        if (x != 0) *at = static_cast<T>(static_cast<double>(*at) + x);
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
