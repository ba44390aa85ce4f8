// Prints one line per test case: a hash of the scores, sums, losses, steps and draws of src/softargmax/output. This
// program is linked with output/kernels.cpp, compiled for one instruction set. test_arm.py compares the lines of two
// instruction sets.
#include <cstdio>
#include <string>
#include <vector>

#include "output/args.hpp"

namespace {

using namespace softargmax;
using namespace softargmax::SOFTARGMAX_ISA_NAME::output;
using Numbers = std::vector<std::int64_t>;

std::uint32_t state = 1;
double uniform() {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) * 0x1p-24;
}
template <class T> std::vector<T> reals(std::int64_t count) {
    std::vector<T> found(static_cast<std::size_t>(count));
    for (T& x : found) x = static_cast<T>(2 * uniform() - 1);
    return found;
}
Numbers below(std::int64_t limit, std::int64_t count) {
    Numbers found(static_cast<std::size_t>(count));
    for (auto& x : found) x = static_cast<std::int64_t>(static_cast<double>(limit) * uniform());
    return found;
}
template <class T> void print(const char* name, std::int64_t width, const std::vector<T>& values) {
    std::uint64_t found = 0xCBF29CE484222325ULL;  // FNV-1a
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) found = (found ^ bytes[i]) * 0x100000001B3ULL;
    std::printf("%s %zu bytes, width %lld: %016llx\n", name, sizeof(T), static_cast<long long>(width),
                static_cast<unsigned long long>(found));
}
template <class T> char* at(std::vector<T>& values) { return reinterpret_cast<char*>(values.data()); }

template <class T> void pairs(Type type, std::int64_t width) {
    constexpr std::int64_t rows = 9, nodes = 14, each = 80, count = rows * each;
    auto h = reals<T>(rows * width), weight = reals<T>(nodes * width), bias = reals<T>(nodes),
         factors = reals<T>(count);
    std::vector<T> x(count), dh(h.size()), loss(rows), totals(rows);
    const Numbers node = below(nodes, count);
    Numbers row, starts;
    std::vector<std::int8_t> signs;
    for (std::int64_t p = 0; p < count; ++p) {
        row.push_back(p / each);
        signs.push_back(static_cast<std::int8_t>(p % 3 - 1));
    }
    for (std::int64_t r = 0; r <= rows; ++r) starts.push_back(r * each);
    const Table table{at(weight), type, width}, offset{at(bias), type, 1};

    DotsArgs dots;
    dots.h = {at(h), type, width};
    dots.weight = table;
    dots.bias = offset;
    dots.width = width;
    dots.pairs = count;
    dots.rows = row.data();
    dots.nodes = node.data();
    dots.out = at(x);
    run_dots(dots);
    print("dots", width, x);

    SumsArgs sums;
    sums.table = table;
    sums.out = {at(dh), type, width};
    sums.width = width;
    sums.sums = rows;
    sums.places = count;
    sums.index = node.data();
    sums.starts = starts.data();
    sums.factors = at(factors);
    sums.totals = at(totals);
    run_sums(sums);
    print("sums", width, dh);
    print("totals", width, totals);

    CoinsArgs coins;
    coins.h = dots.h;
    coins.weight = table;
    coins.bias = offset;
    coins.dh = sums.out;
    coins.width = width;
    coins.rows = rows;
    coins.pairs = count;
    coins.starts = starts.data();
    coins.nodes = node.data();
    coins.signs = signs.data();
    coins.shift = at(factors);
    coins.loss = at(loss);
    coins.slopes = at(x);
    run_coins(coins);
    print("losses", width, loss);
    print("slopes", width, x);
    print("dh", width, dh);
}

template <class T> void steps(Type type, std::int64_t width) {
    constexpr std::int64_t words = 20, rows = 40, each = 4, samples = 3;
    auto vectors = reals<T>(words * width), weight = reals<T>(words * width);
    const Numbers inputs = below(words, rows), target = below(words, rows * each),
                  negatives = below(words, rows * each * samples);
    Numbers starts;
    for (std::int64_t r = 0; r <= rows; ++r) starts.push_back(r * each);
    StepsArgs args;
    args.vectors = {at(vectors), type, width};
    args.weight = {at(weight), type, width};
    args.width = width;
    args.rows = rows;
    args.batch = 16;
    args.targets = rows * each;
    args.inputs = inputs.data();
    args.starts = starts.data();
    args.target = target.data();
    args.negatives = negatives.data();
    args.samples = samples;
    args.rate = 0.3;
    args.last_rate = 0.1;
    run_steps(args);
    print("vectors", width, vectors);
    print("weight", width, weight);
    print("loss", width, std::vector<double>{args.loss});
}

void draws() {
    constexpr std::int64_t classes = 37, count = 1001;
    std::vector<double> threshold = reals<double>(classes);
    const Numbers alias = below(classes, classes);
    Numbers words(4 * count), found(count);
    DrawsArgs args;
    args.seed = 5;
    args.stream = 7;
    args.purpose = 3;
    args.first = 17;
    args.draws = count;
    args.out = words.data();
    run_draws(args);
    print("words", 0, words);
    args.classes = classes;
    args.threshold = threshold.data();
    args.alias = alias.data();
    args.out = found.data();
    run_draws(args);
    print("draws", 0, found);
}

}  // namespace

int main() {
    for (const std::int64_t width : {1, 15, 16, 33, 64, 100, 257}) {
        pairs<float>(Type::f32, width);
        pairs<double>(Type::f64, width);
        steps<float>(Type::f32, width);
        steps<double>(Type::f64, width);
    }
    draws();
}
