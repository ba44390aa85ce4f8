// This room's kernels as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "core/native/arguments.hpp"

using namespace nb::literals;

namespace softargmax {
namespace {

template <class T> using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Streams = std::optional<Vector<const std::int64_t>>;

// The filters' parameters: None, a number, or an array that broadcasts with the rows.
struct Parameters {
    double numbers[6];
    std::optional<Held> arrays[6];
    void add(Plan& plan, SampleJob& job, nb::handle given_) {
        Operand* operands[] = {&job.top_k, &job.top_p, &job.min_p, &job.typical_p, &job.epsilon, &job.eta};
        if (!PyTuple_Check(given_.ptr())) throw nb::type_error("filters: a tuple, please");
        const auto given = nb::borrow<nb::tuple>(given_);
        if (given.size() != 6) throw nb::value_error("filters: six parameters, please");
        for (std::size_t i = 0; i < 6; ++i) {
            const nb::handle x = given[i];
            if (PyFloat_Check(x.ptr())) {
                numbers[i] = PyFloat_AsDouble(x.ptr());
                CallOf<SampleJob>::constant(*operands[i], numbers[i]);
            } else if (!x.is_none()) {
                arrays[i].emplace(x);
                must_be("filters", *arrays[i], {Type::f64});
                plan.add("filters", *operands[i], *arrays[i]);
            }
        }
    }
};

template <class A> auto* numbers(const char* name, A& array, std::int64_t count) {
    if (static_cast<std::int64_t>(array.size()) != count)
        throw nb::value_error((std::string(name) + ": not as many numbers as there are draws or rows").c_str());
    return array.data();
}

Axes last_axis(const Held& z) {
    if (z.shape.empty()) throw nb::value_error("z: 0-d");
    return {static_cast<std::int64_t>(z.shape.size()) - 1};
}

// Runs the job; the first row that all is not well with, and why (kernels.cpp), or -1.
std::pair<std::int64_t, int> first_problem(CallOf<SampleJob>& call) {
    std::vector<std::uint8_t> status(static_cast<std::size_t>(call.job.rows.total));
    call.job.status = status.data();
    call.run(chosen_isa().run_sample);
    for (std::size_t row = 0; row < status.size(); ++row)
        if (status[row]) return {static_cast<std::int64_t>(row), status[row]};
    return {-1, 0};
}

// Draws into `index`. Returns the first row that cannot be drawn from.
std::pair<std::int64_t, int> categorical(nb::handle z_, Vector<std::int64_t> index, std::uint64_t seed, Streams stream,
                                         nb::handle hi, nb::handle lo, nb::handle where_, nb::handle filters,
                                         bool joint, std::int64_t draws, bool replace,
                                         std::optional<Vector<double>> logprob,
                                         std::optional<Vector<std::int64_t>> support) {
    const Held z(z_), where(where_);
    must_be("z", z, kReal);
    must_be("where", where, {Type::boolean});
    CallOf<SampleJob> call(Op::logsumexp);
    SampleJob& job = call.job;
    Plan plan(z, last_axis(z));
    Parameters parameters;
    plan.add("z", job.z, z, true);
    plan.add("where", job.where, where);
    call.scale(plan, hi, lo);
    parameters.add(plan, job, filters);
    plan.finish(job);
    const std::int64_t rows = job.rows.total;
    if (draws < 0 || draws >= std::int64_t{1} << 31) throw nb::value_error("draws: out of range");
    job.seed = seed;
    job.draws = draws;
    job.replace = replace;
    job.joint = joint;
    job.index = numbers("index", index, rows * draws);
    if (stream) job.stream = numbers("stream", *stream, rows);
    if (logprob) job.logprob = numbers("logprob", *logprob, rows * draws);
    if (support) job.support = numbers("support", *support, rows);
    call.segment_work = draws > 1 ? rows * job.cols.total * (draws - 1) : 0;
    return first_problem(call);
}

// Whether the filters leave a score.
std::pair<std::int64_t, int> keep(nb::handle z_, nb::handle out_, nb::handle hi, nb::handle lo, nb::handle where_,
                                  nb::handle filters, bool joint) {
    const Held z(z_), out(out_, true), where(where_);
    must_be("z", z, kReal);
    must_be("out", out, {Type::boolean});
    must_be("where", where, {Type::boolean});
    CallOf<SampleJob> call(Op::softmax);
    Plan plan(z, last_axis(z));
    Parameters parameters;
    plan.add("z", call.job.z, z, true);
    plan.add("out", call.job.out, out, true);
    plan.add("where", call.job.where, where);
    call.scale(plan, hi, lo);
    parameters.add(plan, call.job, filters);
    plan.finish(call.job);
    call.job.joint = joint;
    return first_problem(call);
}

void gumbel(nb::handle out_, std::uint64_t seed, Streams stream) {
    const Held out(out_, true);
    must_be("out", out, kReal);
    CallOf<SampleJob> call(Op::softmax);
    Plan plan(out, last_axis(out));
    plan.add("out", call.job.out, out, true);
    plan.finish(call.job);
    call.job.seed = seed;
    call.job.draws = 0;
    if (stream) call.job.stream = numbers("stream", *stream, call.job.rows.total);
    call.run(chosen_isa().run_sample);
}

using Words = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void random_words(Words out, std::uint64_t seed, std::int64_t stream, std::int64_t draw, std::int64_t first) {
    SampleJob job{};
    job.rows.total = 1;
    job.cols.total = static_cast<std::int64_t>(out.size());
    if (draw < 0 || draw >= std::int64_t{1} << 31 || first < 0 || first % 4)
        throw nb::value_error("draw, first: out of range");
    job.seed = seed;
    job.stream = &stream;
    job.draws = draw;
    job.first = first;
    job.words = out.data();
    chosen_isa().run_sample(job);
}
void gumbel_of_words(Words words, nb::handle out_) {
    const Held out(out_, true);
    must_be("out", out, kReal);
    CallOf<SampleJob> call(Op::softmax);
    Plan plan(out, last_axis(out));
    plan.add("out", call.job.out, out, true);
    plan.finish(call.job);
    call.job.draws = 0;
    call.job.words = numbers("words", words, call.job.rows.total * call.job.cols.total);
    call.run(chosen_isa().run_sample);
}

}  // namespace

void bind_sample(nb::module_& module) {
    module.def("categorical", &categorical, "z"_a, "index"_a, "seed"_a, "stream"_a.none(), "hi"_a, "lo"_a,
               "where"_a.none(), "filters"_a, "joint"_a, "draws"_a, "replace"_a, "logprob"_a = nb::none(),
               "support"_a = nb::none(),
               "draws from the softmax of every row; the first row that cannot be drawn from, and why, or -1");
    module.def("keep", &keep, "z"_a, "out"_a, "hi"_a, "lo"_a, "where"_a.none(), "filters"_a, "joint"_a,
               "whether the filters leave a score; the first row with a parameter out of range, or -1");
    module.def("gumbel", &gumbel, "out"_a, "seed"_a, "stream"_a = nb::none(), "Gumbel noise, one stream per row");
    module.def("random_words", &random_words, "out"_a, "seed"_a, "stream"_a, "draw"_a, "first"_a,
               "the 64 random bits of each column from the first on");
    module.def("gumbel_of_words", &gumbel_of_words, "words"_a, "out"_a, "the noise that such bits make");
}

}  // namespace softargmax
