// Prints one line per test case: a hash of the bits of attention and its gradients. This program is linked with
// attend/kernels.cpp, compiled for one instruction set. test_arm.py compares the lines of two instruction sets.
#include <cstdio>
#include <vector>

#include "attend/args.hpp"

namespace {

using namespace softargmax;
using namespace softargmax::attend;

struct Numbers {  // xorshift64*
    std::uint64_t state;
    double next() {  // in [-1, 1)
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<double>(static_cast<std::int64_t>(state * 0x2545F4914F6CDD1DULL) >> 11) * 0x1p-52;
    }
};

// Random numbers of shape (2, heads, rows, columns): a batch of two entries.
template <class T> struct Tensor {
    std::int64_t heads, rows, cols;
    std::vector<T> values;
    Tensor(std::int64_t h, std::int64_t r, std::int64_t c, std::uint64_t seed, double size = 2)
        : heads(h), rows(r), cols(c), values(static_cast<std::size_t>(2 * h * r * c)) {
        Numbers numbers{0x9E3779B97F4A7C15ULL + seed};
        for (T& x : values) x = static_cast<T>(size * numbers.next());
    }
    Operand operand(Type type) {
        Operand x;
        x.data = reinterpret_cast<char*>(values.data());
        x.type = type;
        x.row[0] = heads * rows * cols;
        x.row[1] = rows * cols;
        x.row[2] = cols;
        x.col[0] = 1;
        return x;
    }
};

template <class... Ts> void print(const char* name, std::int64_t queries, std::int64_t keys, const Ts&... all) {
    std::printf("%s %lldx%lld:", name, static_cast<long long>(queries), static_cast<long long>(keys));
    const auto hash = [](const auto& values) {
        std::uint64_t found = 0xCBF29CE484222325ULL;  // FNV-1a
        const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
        for (std::size_t i = 0; i < values.size() * sizeof values[0]; ++i)
            found = (found ^ bytes[i]) * 0x100000001B3ULL;
        std::printf(" %016llx", static_cast<unsigned long long>(found));
    };
    (hash(all), ...);
    std::printf("\n");
}

template <class T> void one(const char* name, Type type, std::int64_t queries, std::int64_t keys, int options) {
    constexpr std::int64_t heads = 4, groups = 2, width = 20, values = 24;
    Tensor<T> q(heads, queries, width, 1), k(groups, keys, width, 2), v(groups, keys, values, 3),
        out(heads, queries, values, 4), g(heads, queries, values, 5), bias(heads, queries, keys, 6),
        dq = q, dk = k, dv = v, dbias(heads, queries, keys, 7, 0);
    Tensor<double> scale(heads, queries, 1, 8, 0.4), slopes(heads, 1, 1, 10, 0.1), dslopes(heads, queries, 1, 11, 0),
        lse(heads, queries, 1, 9), delta = lse, dscale = lse;
    std::vector<std::int64_t> lengths{keys, keys / 2};
    std::vector<std::int64_t> seeds(4 * heads);  // two numbers per head, for a batch of two entries
    for (std::size_t i = 0; i < seeds.size(); ++i) seeds[i] = static_cast<std::int64_t>(i * 0x9E3779B9u % 0xFFFFFFFFu);
    std::vector<std::uint8_t> nonfinite(static_cast<std::size_t>(2 * heads * queries));
    GradientArgs args;
    args.batch.dims = 1;
    args.batch.size[0] = args.batch.total = 2;
    args.heads = heads;
    args.groups = groups;
    args.queries = queries;
    args.keys = keys;
    args.width = width;
    args.values = values;
    args.q = q.operand(type);
    args.k = k.operand(type);
    args.v = v.operand(type);
    args.out = out.operand(type);
    args.seed = g.operand(type);
    args.dq = dq.operand(type);
    args.dk = dk.operand(type);
    args.dv = dv.operand(type);
    args.scale.value = scale.operand(Type::f64);
    args.lse = lse.values.data();
    args.delta = delta.values.data();
    args.nonfinite = nonfinite.data();
    args.scale.gradient = dscale.values.data();
    if (options & 1) args.right = 0;
    if (options & 2) args.left = 70;
    if (options & 4) {
        args.softcap = 1.5;
        args.bias = bias.operand(type);
        args.dbias = dbias.operand(type);
    }
    if (options & 8) args.lengths = lengths.data();
    if (options & 16) {
        args.dropout = 0.3;
        args.seeds = seeds.data();
    }
    if (options & 32) {
        args.slopes.value = slopes.operand(Type::f64);
        args.slopes.value.row[2] = 0;
        args.slopes.gradient = dslopes.values.data();
    }
    softargmax::SOFTARGMAX_ISA_NAME::attend::run(args);
    softargmax::SOFTARGMAX_ISA_NAME::attend::run_gradient(args);
    print(name, queries, keys, out.values, lse.values, dq.values, dk.values, dv.values, dbias.values, dscale.values,
          dslopes.values);
}

}  // namespace

int main() {
    for (int options = 0; options < 64; options += 3)
        for (std::int64_t queries : {1, 30})
            for (std::int64_t keys : {7, 600}) {
                one<float>("float", Type::f32, queries, keys, options);
                one<double>("double", Type::f64, queries, keys, options);
            }
    return 0;
}
