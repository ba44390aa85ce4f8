// Python bindings of the kernels of the output layers. Each argument is passed by name. A field object, as in
// core/cpp/bind.hpp, reads the argument and stores it in the struct of the kernel's arguments. Some arguments have one
// entry per item, for example per pair. The first of these arguments sets the number of items, and the others must have
// the same length.
#include "core/cpp/bind.hpp"

#include <numeric>

#include "output/args.hpp"
#include "output/radix_sort.hpp"

namespace softargmax::output {
namespace {

template <class T> using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The arguments of `places_by_row`, the binding of `sort_places` (radix_sort.hpp).
struct PlacesArgs {
    const std::int64_t* index = nullptr;
    std::int64_t *order = nullptr, *rows = nullptr, *starts = nullptr;
    std::int64_t places = kUnknown;
};

[[noreturn]] void wrong(const char* name, const char* expected) {
    throw nb::value_error((std::string(name) + ": expected " + expected).c_str());
}
void agree(const char* name, std::int64_t& count, std::int64_t found) {
    if (count == kUnknown) count = found;
    if (count == found) return;
    throw nb::value_error(
        (std::string(name) + ": expected length " + std::to_string(count) + ", got " + std::to_string(found)).c_str());
}

// ---- fields ---------------------------------------------------------------------------------------------------------

// A matrix argument whose rows are contiguous.
template <class J> struct TableField {
    using Value = HeldArray;
    const char* name;
    Table J::* to;
    std::initializer_list<Type> types;
    bool written;
    bool may_be_none = false;
    HeldArray read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        HeldArray held(x, written);
        must_be(name, held, types);
        return held;
    }
    void put(J& job, const HeldArray& x) const {
        if (!x) return;
        if (x.shape.size() != 2) wrong(name, "a matrix");
        if (job.width == kUnknown) job.width = x.shape[1];
        if (x.shape[1] != job.width || (job.width > 1 && x.stride[1] != 1))
            wrong(name, "contiguous vectors of the same length as the other vectors");
        job.*to = {x.data, x.type, x.stride[0], x.shape[0]};
    }
};
template <class J> TableField<J> vectors(const char* name, Table J::* to, std::initializer_list<Type> types = kReal) {
    return {name, to, types, false};
}
template <class J> TableField<J> vectors_result(const char* name, Table J::* to) { return {name, to, kWide, true}; }

// An argument with one number for each vector of a table, or None.
template <class J> struct BiasField {
    using Value = HeldArray;
    const char* name;
    Table J::* to;
    Table J::* of;
    HeldArray read(nb::handle x) const {
        HeldArray held(x);
        must_be(name, held, kReal);
        return held;
    }
    void put(J& job, const HeldArray& x) const {
        if (!x) return;
        if (x.shape.size() != 1 || x.shape[0] != (job.*of).rows) wrong(name, "a vector with one number per node");
        job.*to = {x.data, x.type, x.stride[0], x.shape[0]};
    }
};
template <class J> BiasField<J> bias(const char* name, Table J::* to, Table J::* of) { return {name, to, of}; }

// A vector of contiguous numbers of the same type as the table `like`.
template <class J, class T> struct NumbersField {
    using Value = HeldArray;
    const char* name;
    T* J::* to;
    std::int64_t J::* count;
    Table J::* like;
    bool may_be_none = false;
    HeldArray read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        return HeldArray(x, !std::is_const_v<T>);
    }
    void put(J& job, const HeldArray& x) const {
        if (!x) return;
        must_be(name, x, {(job.*like).type});
        if (x.shape.size() != 1 || (x.shape[0] > 1 && x.stride[0] != 1)) wrong(name, "a contiguous vector");
        agree(name, job.*count, x.shape[0]);
        job.*to = x.data;
    }
};
template <class J, class T>
NumbersField<J, T> numbers(const char* name, T* J::* to, std::int64_t J::* count, Table J::* like) {
    return {name, to, count, like};
}

// A vector of `count` + `more` numbers, integers or float64. A vector that the kernel writes must be contiguous. An
// array that the kernel only reads is copied if it is not contiguous. The argument can also be a tuple (address, type,
// shape, strides), which must describe contiguous numbers.
template <class J, class T> struct VectorField {
    struct Value {
        T* data = nullptr;
        std::int64_t size = 0;
        Vector<T> array;
    };
    const char* name;
    T* J::* to;
    std::int64_t J::* count;
    std::int64_t more = 0;
    bool may_be_none = false;
    Value read(nb::handle x) const {
        if (may_be_none && x.is_none()) return {};
        must_be_given(name, x);
        if (PyTuple_Check(x.ptr())) return described(HeldArray(x, !std::is_const_v<T>));
        Vector<T> array;
        if (!nb::try_cast(x, array, std::is_const_v<T>)) refuse(name, "a vector of another type");
        static T nothing{};  // an empty array may have a null address, which would mean None
        const auto size = static_cast<std::int64_t>(array.size());
        return {size ? array.data() : &nothing, size, std::move(array)};
    }
    void put(J& job, const Value& x) const {
        if (!x.data) return;
        agree(name, job.*count, x.size - more);
        job.*to = x.data;
    }

  private:
    Value described(const HeldArray& x) const {
        using Number = std::remove_const_t<T>;
        constexpr bool integer = std::is_same_v<Number, std::int64_t>;
        static_assert(integer || std::is_same_v<Number, double> || sizeof(Number) < 8);
        if (sizeof(Number) < 8 || x.type != (integer ? Type::i64 : Type::f64)) refuse(name, "a vector of another type");
        if (x.shape.size() != 1 || (x.shape[0] > 1 && x.stride[0] != 1)) wrong(name, "a contiguous vector");
        return {reinterpret_cast<T*>(x.data), x.shape[0], {}};
    }
};
template <class J, class T> VectorField<J, T> vector(const char* name, T* J::* to, std::int64_t J::* count) {
    return {name, to, count};
}
// An argument with the start positions of `count` segments, and the end of the last segment.
template <class J> VectorField<J, const std::int64_t> bounds(const char* name, const std::int64_t* J::* to,
                                                             std::int64_t J::* count) {
    return {name, to, count, 1};
}

// A scalar argument.
template <class J, class T> struct NumberField {
    using Value = T;
    const char* name;
    T J::* to;
    T read(nb::handle x) const { return number_of<T>(name, x); }
    void put(J& job, T x) const { job.*to = x; }
};
template <class J, class T> NumberField<J, T> number(const char* name, T J::* to) { return {name, to}; }

// Binds a kernel with one argument per field. `run` checks the values of the arguments and calls the kernel.
template <class J, class Run, class... Field>
void bind_vectors(nb::module_& module, const char* name, const char* text, Run run, Field... fields) {
    module.def(name, [=](Handle<Field>... given) {
        std::tuple<typename Field::Value...> values{fields.read(given)...};
        J job;
        std::apply([&](auto&... value) { (fields.put(job, value), ...); }, values);
        return run(job);
    }, nb::arg(fields.name).none()..., text);
    list_arguments(module, name, fields...);
}

// ---- values ---------------------------------------------------------------------------------------------------------

// Raises IndexError unless all numbers are from 0 to `limit` - 1. Negative numbers fail because they become large
// unsigned numbers.
template <class T> void in_range(const char* name, const T* index, std::int64_t count, std::int64_t limit) {
    using Unsigned = std::make_unsigned_t<T>;
    Unsigned most = 0;
    for (std::int64_t i = 0; i < count; ++i) most = std::max(most, static_cast<Unsigned>(index[i]));
    if (count && most >= static_cast<std::uint64_t>(limit))
        throw nb::index_error((std::string(name) + ": expected indices in range, got one outside it").c_str());
}
void check_bounds(const char* name, const std::int64_t* starts, std::int64_t count, std::int64_t places) {
    if (count < 0 || starts[0] != 0 || starts[count] != places || !std::is_sorted(starts, starts + count + 1))
        wrong(name, "one more position than segments, non-decreasing, from 0 to the number of entries");
}
int threads_for(std::int64_t work) { return work < kParallel ? 1 : threads_now(); }

void check_and_run(DotsArgs& job) {
    in_range("rows", job.rows, job.pairs, job.h.rows);
    in_range("nodes", job.nodes, job.pairs, job.weight.rows);
    job.threads = threads_for(job.pairs * job.width);
    const ReleasedGil released;
    run_dots(job);
}

void check_and_run(SumsArgs& job) {
    if (job.out.rows != job.sums) wrong("starts", "one more entry than there are sums");
    in_range("index", job.index, job.places, job.table.rows);
    check_bounds("starts", job.starts, job.sums, job.places);
    if (job.order) in_range("order", job.order, job.places, job.places);
    job.threads = threads_for(job.places * job.width);
    const ReleasedGil released;
    run_sums(job);
}

void check_and_run(CoinsArgs& job) {
    if (job.h.rows != job.rows) wrong("starts", "one more entry than h has rows");
    if (job.dh.data && (job.dh.rows != job.rows || job.dh.type != job.h.type)) wrong("dh", "the shape and type of h");
    check_bounds("starts", job.starts, job.rows, job.pairs);
    in_range("nodes", job.nodes, job.pairs, job.weight.rows);
    job.threads = threads_for(job.pairs * job.width);
    const ReleasedGil released;
    run_coins(job);
}

bool overlap(const Table& a, const Table& b) {
    const auto end = [](const Table& x) { return x.data + x.rows * x.pitch * kTypeBytes[static_cast<int>(x.type)]; };
    return a.data < end(b) && b.data < end(a);
}

double check_and_run(StepsArgs& job) {
    constexpr std::int64_t kEnd = std::int64_t{1} << 31;
    if (job.weight.type != job.vectors.type) throw nb::type_error("weight: expected the type of vectors");
    if (overlap(job.vectors, job.weight)) wrong("weight", "memory that does not overlap with vectors");
    if (job.batch < 1 || job.batch >= kEnd || job.weight.rows >= kEnd)
        wrong("batch, weight", "a batch from 1 to 2^31 - 1 and fewer than 2^31 nodes");
    in_range("inputs", job.inputs, job.rows, job.vectors.rows);
    check_bounds("starts", job.starts, job.rows, job.targets);
    std::int64_t pairs = 0;
    if (job.offsets) {
        if (!job.nodes || !job.signs || job.negatives)
            wrong("nodes, signs", "both, and no negatives, if offsets are passed");
        check_bounds("offsets", job.offsets, job.classes, job.path_nodes);
        in_range("nodes", job.nodes, job.path_nodes, job.weight.rows);
        in_range("target", job.target, job.targets, job.classes);
        const auto length = [&](std::int64_t y) { return job.offsets[y + 1] - job.offsets[y]; };
        pairs = std::transform_reduce(job.target, job.target + job.targets, std::int64_t{0}, std::plus<>(), length);
    } else {
        if (!job.negatives || (job.targets ? job.drawn % job.targets != 0 : job.drawn != 0))
            wrong("negatives", "the same number for each target, or paths (offsets)");
        in_range("target", job.target, job.targets, job.weight.rows);
        in_range("negatives", job.negatives, job.drawn, job.weight.rows);
        job.samples = job.targets ? job.drawn / job.targets : 0;
        pairs = job.targets + job.drawn;
    }
    job.threads = job.rows ? threads_for(std::min(job.batch, job.rows) * (pairs / job.rows) * job.width) : 1;
    const ReleasedGil released;
    run_steps(job);
    return job.loss;
}

void check_and_run(DrawsArgs& job) {
    if (job.first < 0 || job.first + job.draws > std::int64_t{1} << 32) wrong("first", "positions below 2^32");
    if (job.threshold && (job.classes < 1 || job.classes >= std::int64_t{1} << 31))
        wrong("threshold, alias", "one entry per class, for 1 to 2^31 - 1 classes");
    job.threads = threads_for(job.draws);
    const ReleasedGil released;
    run_draws(job);
}

std::int64_t check_and_run(PlacesArgs& job) {
    constexpr std::int64_t kEnd = std::int64_t{1} << 31;
    if (job.places >= kEnd) wrong("index", "fewer than 2^31 entries");
    in_range("index", job.index, job.places, kEnd);
    const ReleasedGil released;
    const std::int64_t most = job.places ? *std::max_element(job.index, job.index + job.places) : 0;
    return sort_places(job.index, job.places, most, job.order, job.rows, job.starts);
}

// A result with four rows of integers and one column per position.
struct WordsField {
    using Value = nb::ndarray<std::int64_t, nb::shape<4, -1>, nb::c_contig, nb::device::cpu>;
    const char* name;
    Value read(nb::handle x) const {
        Value found;
        if (!nb::try_cast(x, found, false)) refuse(name, "a contiguous array of int64 with four rows");
        return found;
    }
    void put(DrawsArgs& job, const Value& x) const {
        job.draws = static_cast<std::int64_t>(x.shape(1));
        job.out = x.data();
    }
};

}  // namespace

void bind(nb::module_& module) {
    const auto run = [](auto& job) { return check_and_run(job); };

    bind_vectors<DotsArgs>(module, "pair_scores", "Write to x the score <h, w> + b of each pair (row, node).", run,
                           vectors("h", &DotsArgs::h, kWide), vectors("weight", &DotsArgs::weight),
                           bias("bias", &DotsArgs::bias, &DotsArgs::weight),
                           vector("nodes", &DotsArgs::nodes, &DotsArgs::pairs),
                           vector("rows", &DotsArgs::rows, &DotsArgs::pairs),
                           numbers("x", &DotsArgs::out, &DotsArgs::pairs, &DotsArgs::h));

    bind_vectors<SumsArgs>(module, "sums",
                           "For each segment, write to `sums` the weighted sum of rows of `table`, and to `totals` "
                           "the sum of the weights. `factors` are the weights.",
                           run, vectors_result("sums", &SumsArgs::out), vectors("table", &SumsArgs::table),
                           vector("index", &SumsArgs::index, &SumsArgs::places),
                           numbers("factors", &SumsArgs::factors, &SumsArgs::places, &SumsArgs::out),
                           bounds("starts", &SumsArgs::starts, &SumsArgs::sums),
                           optional(vector("order", &SumsArgs::order, &SumsArgs::places)),
                           optional(numbers("totals", &SumsArgs::totals, &SumsArgs::sums, &SumsArgs::out)));

    bind_vectors<PlacesArgs>(
        module, "places_by_row",
        "Sort the positions of `index` by value, and write them to `order`. Write the distinct values to `rows`. "
        "Write to `starts` where each value begins in `order`. Return the number of distinct values.",
        run, vector("index", &PlacesArgs::index, &PlacesArgs::places),
        vector("order", &PlacesArgs::order, &PlacesArgs::places),
        vector("rows", &PlacesArgs::rows, &PlacesArgs::places),
        VectorField<PlacesArgs, std::int64_t>{"starts", &PlacesArgs::starts, &PlacesArgs::places, 1});

    bind_vectors<CoinsArgs>(
        module, "coin_losses",
        "Write the binary logistic losses of rows, the slopes of their pairs and the gradient with respect to h.", run,
        vectors("h", &CoinsArgs::h, kWide), vectors("weight", &CoinsArgs::weight),
        bias("bias", &CoinsArgs::bias, &CoinsArgs::weight), vector("nodes", &CoinsArgs::nodes, &CoinsArgs::pairs),
        bounds("starts", &CoinsArgs::starts, &CoinsArgs::rows), vector("signs", &CoinsArgs::signs, &CoinsArgs::pairs),
        optional(numbers("shift", &CoinsArgs::shift, &CoinsArgs::pairs, &CoinsArgs::h)),
        numbers("loss", &CoinsArgs::loss, &CoinsArgs::rows, &CoinsArgs::h),
        optional(numbers("slopes", &CoinsArgs::slopes, &CoinsArgs::pairs, &CoinsArgs::h)),
        optional(vectors_result("dh", &CoinsArgs::dh)));

    bind_vectors<StepsArgs>(
        module, "descend", "Update both tables in place by steps of gradient descent. Return the sum of the losses.",
        run, vectors_result("vectors", &StepsArgs::vectors), vectors_result("weight", &StepsArgs::weight),
        vector("inputs", &StepsArgs::inputs, &StepsArgs::rows), bounds("starts", &StepsArgs::starts, &StepsArgs::rows),
        vector("target", &StepsArgs::target, &StepsArgs::targets),
        optional(vector("negatives", &StepsArgs::negatives, &StepsArgs::drawn)),
        optional(bounds("offsets", &StepsArgs::offsets, &StepsArgs::classes)),
        optional(vector("nodes", &StepsArgs::nodes, &StepsArgs::path_nodes)),
        optional(vector("signs", &StepsArgs::signs, &StepsArgs::path_nodes)), number("rate", &StepsArgs::rate),
        number("last_rate", &StepsArgs::last_rate), number("batch", &StepsArgs::batch));

    const auto seed = number("seed", &DrawsArgs::seed), stream = number("stream", &DrawsArgs::stream);
    const auto purpose = number("purpose", &DrawsArgs::purpose);
    const auto first = number("first", &DrawsArgs::first);
    bind_vectors<DrawsArgs>(module, "random_blocks",
                            "Write the four random words of position first + i to column i of `words`.", run,
                            WordsField{"words"}, seed, stream, purpose, first);
    bind_vectors<DrawsArgs>(
        module, "alias_draws",
        "Draw one class per position, from position first on, with an alias table. Write the classes to index.", run,
        vector("threshold", &DrawsArgs::threshold, &DrawsArgs::classes),
        vector("alias", &DrawsArgs::alias, &DrawsArgs::classes), vector("index", &DrawsArgs::out, &DrawsArgs::draws),
        seed, stream, purpose, first);
}

}  // namespace softargmax::output
