// Prints one line per test case: draws, with hashes of their log-probabilities and of the sizes of the supports, or a
// hash of noise. This program is linked with sample/kernels.cpp, compiled for one instruction set. test_arm.py compares
// the lines of two instruction sets.
#include <cmath>
#include <cstdio>
#include <vector>

#include "sample/args.hpp"

namespace {

using namespace softargmax;
using namespace softargmax::sample;

template <class T> void constant(Operand& x, T& value, Type type = Type::f64) {
    x.data = reinterpret_cast<char*>(&value);
    x.type = type;
    x.row[0] = x.col[0] = 0;
}
template <class T> Operand dense(std::vector<T>& values, Type type, std::int64_t cols) {
    Operand x;
    x.data = reinterpret_cast<char*>(values.data());
    x.type = type;
    x.row[0] = cols;
    x.col[0] = 1;
    return x;
}
std::uint64_t hash(const void* data, std::size_t bytes) {  // FNV-1a
    std::uint64_t found = 0xCBF29CE484222325ULL;
    for (std::size_t i = 0; i < bytes; ++i)
        found = (found ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3ULL;
    return found;
}

Args rows_of(std::int64_t rows, std::int64_t cols, std::int64_t& seed) {
    Args args{};
    args.rows.dims = args.cols.dims = 1;
    args.rows.size[0] = args.rows.total = rows;
    args.cols.size[0] = args.cols.total = cols;
    seed = 12345 + cols;
    constant(args.seed, seed, Type::i64);
    return args;
}
void noise(std::int64_t cols) {
    constexpr std::int64_t rows = 5;
    std::vector<double> found(static_cast<std::size_t>(rows * cols));
    std::int64_t seed = 0;
    Args args = rows_of(rows, cols, seed);
    args.out = dense(found, Type::f64, cols);
    args.draws = 0;
    softargmax::SOFTARGMAX_ISA_NAME::sample::run(args);
    std::printf("noise cols %lld: %016llx\n", static_cast<long long>(cols),
                static_cast<unsigned long long>(hash(found.data(), found.size() * 8)));
}

template <class T> void one(Type type, std::int64_t cols, double spread, int filters, double temperature) {
    constexpr std::int64_t rows = 5, draws = 3;
    const std::size_t count = static_cast<std::size_t>(rows * cols);
    std::vector<T> z(count);
    for (std::size_t i = 0; i < count; ++i)  // no library functions: their results may differ between machines
        z[i] = static_cast<T>(spread * (static_cast<double>(i * 2654435761u % 100003) / 50001.5 - 1));
    std::vector<double> logprob(rows * draws);
    std::vector<std::int64_t> index(rows * draws), support(rows);
    std::vector<std::uint8_t> status(rows);
    std::int64_t seed = 0;
    Args args = rows_of(rows, cols, seed);
    args.z = dense(z, type, cols);
    double hi = 1 / temperature, lo = 0x1p-60, k = std::fmin(30, static_cast<double>(cols)), p = 0.9, least = 0.01;
    constant(args.hi, hi);
    constant(args.lo, lo);
    if (filters & 1) constant(args.top_k, k);
    if (filters & 2) constant(args.top_p, p);
    if (filters & 4) constant(args.typical_p, p);
    if (filters & 8) constant(args.eta, least);
    args.draws = draws;
    args.index = dense(index, Type::i64, draws);
    args.status = status.data();
    if (filters) {
        args.logprob = dense(logprob, Type::f64, draws);
        args.support_size = dense(support, Type::i64, 1);
    }
    softargmax::SOFTARGMAX_ISA_NAME::sample::run(args);
    std::printf("type %d cols %lld spread %g filters %d T %g: %016llx %016llx", static_cast<int>(type),
                static_cast<long long>(cols), spread, filters, temperature,
                static_cast<unsigned long long>(hash(logprob.data(), logprob.size() * 8)),
                static_cast<unsigned long long>(hash(support.data(), support.size() * 8)));
    for (std::int64_t i : index) std::printf(" %lld", static_cast<long long>(i));
    std::printf("\n");
}

}  // namespace

int main() {
    for (std::int64_t cols : {1, 7, 100, 4097, 9000}) {
        noise(cols);
        for (double spread : {0.5, 4.0, 100.0})
            for (int filters : {0, 1, 2, 3, 4, 8, 15})
                for (double temperature : {1.0, 3.7}) {
                    one<float>(Type::f32, cols, spread, filters, temperature);
                    one<double>(Type::f64, cols, spread, filters, temperature);
                }
    }
    return 0;
}
