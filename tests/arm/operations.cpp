// Prints one line per test case: a hash of the bits that the kernels of normalize write. This program is linked with
// normalize/kernels.cpp, compiled for one instruction set. test_arm.py compares the lines of two instruction sets.
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "normalize/args.hpp"

namespace {

using namespace softargmax;
using namespace softargmax::normalize;

struct Numbers {  // xorshift64*
    std::uint64_t state;
    double next() {  // in [-1, 1)
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<double>(static_cast<std::int64_t>(state * 0x2545F4914F6CDD1DULL) >> 11) * 0x1p-52;
    }
};

// Returns the bits of a half-precision number, made from the upper bits of a float. It is not rounded to nearest, and
// small numbers become 0, which is good enough for test data.
std::uint16_t half_bits(double x) {
    const float f = static_cast<float>(x < -60000 ? -60000 : x > 60000 ? 60000 : x);
    std::uint32_t u;
    std::memcpy(&u, &f, 4);
    const std::int32_t e = static_cast<std::int32_t>((u >> 23) & 0xFF) - 127 + 15;
    const std::uint32_t sign = (u >> 16) & 0x8000;
    return static_cast<std::uint16_t>(e <= 0 ? sign : sign | static_cast<std::uint32_t>(e) << 10 | ((u >> 13) & 0x3FF));
}

struct Array {
    Type type;
    std::vector<char> bytes;
    Array(Type t, std::size_t n) : type(t), bytes(n * static_cast<std::size_t>(kTypeBytes[static_cast<int>(t)])) {}
    void set(std::size_t i, double x) {
        const float f = static_cast<float>(x);
        std::uint32_t u;
        std::memcpy(&u, &f, 4);
        const std::uint16_t b = static_cast<std::uint16_t>(u >> 16), h = half_bits(x);
        switch (type) {
            case Type::f32: std::memcpy(bytes.data() + 4 * i, &f, 4); break;
            case Type::f64: std::memcpy(bytes.data() + 8 * i, &x, 8); break;
            case Type::bf16: std::memcpy(bytes.data() + 2 * i, &b, 2); break;
            default: std::memcpy(bytes.data() + 2 * i, &h, 2);
        }
    }
    Operand operand(std::int64_t row, std::int64_t col) {
        Operand x;
        x.data = bytes.data();
        x.type = type;
        x.row[0] = row;
        x.col[0] = col;
        return x;
    }
};

void one(Op op, Type type, std::int64_t rows, std::int64_t cols, double spread, bool columns, double temperature) {
    const auto count = static_cast<std::size_t>(rows * cols);
    Array z(type, count), other(type, count), out(type, count);
    Numbers numbers{0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(cols)};
    for (std::size_t i = 0; i < count; ++i) {
        z.set(i, op == Op::softmax_vjp ? (numbers.next() + 1) / static_cast<double>(cols) : spread * numbers.next());
        other.set(i, numbers.next());
    }
    double hi = 1 / temperature, lo = 0x1p-60;
    Args args;
    args.op = op;
    args.rows.dims = args.cols.dims = 1;
    args.rows.size[0] = args.rows.total = rows;
    args.cols.size[0] = args.cols.total = cols;
    const std::int64_t row = columns ? 1 : cols, col = columns ? rows : 1;
    args.z = z.operand(row, col);
    args.out = out.operand(row, op == Op::logsumexp ? 0 : col);
    if (op == Op::softmax_vjp) args.other = other.operand(row, col);
    if (temperature != 1) {
        for (auto [x, value] : {std::pair{&args.hi, &hi}, std::pair{&args.lo, &lo}}) {
            x->data = reinterpret_cast<char*>(value);
            x->type = Type::f64;
            x->row[0] = x->col[0] = 0;
        }
    }
    softargmax::SOFTARGMAX_ISA_NAME::normalize::run(args);
    std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
    for (char c : out.bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    std::printf("op %d type %d %lldx%lld spread %g columns %d T %g: %016llx\n", static_cast<int>(op),
                static_cast<int>(type), static_cast<long long>(rows), static_cast<long long>(cols), spread, columns,
                temperature, static_cast<unsigned long long>(hash));
}

}  // namespace

int main() {
    for (Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::softmax_vjp, Op::logcumsumexp})
        for (Type type : {Type::f16, Type::bf16, Type::f32, Type::f64})
            for (std::int64_t cols : {1, 7, 100, 4097, 9000})
                for (double spread : {1.0, 40.0, 1e4})
                    for (bool columns : {false, true})
                        for (double temperature : {1.0, 3.7, -2.0})
                            one(op, type, 3, cols, spread, columns, temperature);
    return 0;
}
