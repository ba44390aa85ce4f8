// Python bindings of the sampling kernels.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "core/cpp/bind.hpp"
#include "sample/args.hpp"

using namespace nb::literals;

namespace softargmax::sample {
namespace {

// Runs the kernel. Of rows that are spread over processes, it only makes draws with replacement, without filters.
void run_here(const Args& args) {
    const bool filters = args.top_k || args.top_p || args.min_p || args.typical_p || args.epsilon || args.eta;
    if (args.shards && (!args.index || !args.replace || args.logprob || filters))
        throw nb::value_error("axes: this operation needs whole rows in one process");
    run(args);
}

// Runs the kernel. Returns the first row with an error and its code (kernels.cpp), if there is one.
std::optional<std::pair<std::int64_t, int>> first_problem(Args& args) {
    std::vector<std::uint8_t> status(static_cast<std::size_t>(args.rows.total));
    args.status = status.data();
    run_here(args);
    for (std::size_t row = 0; row < status.size(); ++row)
        if (status[row]) return std::make_pair(static_cast<std::int64_t>(row), int{status[row]});
    return std::nullopt;
}

// The number of draws per row. For choosing the number of threads, each draw counts as one pass over the scores.
struct DrawsField {
    using Value = std::int64_t;
    const char* name;
    Value read(nb::handle x) const { return number_of<Value>(name, x); }
    void put(Plan&, CallOf<Args>& call, Value draws) const {
        call.job.draws = draws;
        call.passes = std::max<Value>(1, draws);
    }
};

using Words = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void random_words(Words out, std::uint64_t seed, std::int64_t stream, std::int64_t draw, std::int64_t first) {
    Args job{};
    job.rows.total = 1;
    job.cols.total = static_cast<std::int64_t>(out.size());
    if (draw < 0 || draw >= std::int64_t{1} << 31 || first < 0 || first % 4)
        throw nb::value_error("draw, first: expected draw from 0 to 2^31 - 1, and first a multiple of 4, 0 or above");
    CallOf<Args>::constant(job.seed, seed);
    CallOf<Args>::constant(job.stream, stream);
    job.draws = draw;
    job.first = first;
    job.words = out.data();
    run(job);
}
void gumbel_of_words(Words words, nb::handle out_) {
    const HeldArray out(out_, true);
    must_be("out", out, kReal);
    CallOf<Args> call;
    Plan plan(out, Dims{static_cast<std::int64_t>(out.shape.size()) - 1});
    plan.add("out", call.job.out, out, true);
    plan.finish(call.job);
    if (static_cast<std::int64_t>(words.size()) != call.job.rows.total * call.job.cols.total)
        throw nb::value_error("words: expected one word for each number of out, got another count");
    call.job.draws = 0;
    call.job.words = words.data();
    call.run(run);
}

}  // namespace

void bind(nb::module_& module) {
    const auto z = scores("z", &Args::z);
    const auto where = optional(mask("where", &Args::where));
    const auto pair = beta("beta");
    const auto top_k = optional(rowwise("top_k", &Args::top_k, kNumber));
    const auto top_p = optional(rowwise("top_p", &Args::top_p)), min_p = optional(rowwise("min_p", &Args::min_p));
    const auto typical_p = optional(rowwise("typical_p", &Args::typical_p));
    const auto epsilon = optional(rowwise("epsilon", &Args::epsilon)), eta = optional(rowwise("eta", &Args::eta));
    const auto joint = number("joint", &Args::joint);
    const auto seed = word("seed", &Args::seed);
    const auto stream = optional(integers("stream", &Args::stream));
    const auto along = axes("axes");

    const auto bind_draws = [&](const char* name, const char* text, const auto&... results) {
        softargmax::bind<Args>(module, name, text, first_problem, [](Args&) {}, z, where, pair, top_k, top_p, min_p,
                               typical_p, epsilon, eta, joint, seed, stream, along, DrawsField{"draws"},
                               number("replace", &Args::replace), results...);
    };
    const auto index = integer_list("index", &Args::index, &Args::draws);
    bind_draws(
        "categorical",
        "Write draws from the softmax of each row to index. Return the first row that cannot be drawn from and its "
        "error code, or None",
        index);
    bind_draws(
        "categorical_with_logprob",
        "Write draws from the softmax of each row, their log-probabilities, and the number of classes that can be "
        "drawn. Return the same as `categorical`",
        index, real_list("logprob", &Args::logprob, &Args::draws), row_integer("support_size", &Args::support_size));
    softargmax::bind<Args>(
        module, "filter_mask",
        "Write the mask of the scores that the filters keep. Return the first row with a parameter out of range and "
        "its error code, or None",
        first_problem, [](Args&) {}, z, where, pair, top_k, top_p, min_p, typical_p, epsilon, eta, joint, along,
        mask_result("kept", &Args::out));
    softargmax::bind<Args>(module, "gumbel", "Write Gumbel noise to g, with one stream per row", run_here,
                           [](Args& args) { args.draws = 0; }, result("g", &Args::out), seed, stream, along);
    module.def("random_words", &random_words, "out"_a, "seed"_a, "stream"_a, "draw"_a, "first"_a,
               "Write the 64 random bits of each column to out, beginning with column `first`");
    module.def("gumbel_of_words", &gumbel_of_words, "words"_a, "out"_a,
               "Write Gumbel noise to out, computed from one word of 64 random bits per number");
}

}  // namespace softargmax::sample
