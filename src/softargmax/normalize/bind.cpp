// Python bindings of the normalize kernels.
#include "core/cpp/bind.hpp"

#include "normalize/args.hpp"
#include "normalize/sums.hpp"

using namespace nb::literals;

namespace softargmax::normalize {
namespace {

struct Call : CallOf<Args> {
    explicit Call(Op op) { job.op = op; }
};

template <class... Field>
void bind_rows(nb::module_& module, const char* name, Op op, const char* text, Field... fields) {
    softargmax::bind<Args>(module, name, text, run, [op](Args& args) { args.op = op; }, fields...);
}

void bind_sum(nb::module_& module, const NamedSum& sum) {
    const auto prepare = [which = sum.sum](Args& args) { args.op = Op::sum, args.sum = which; };
    const auto z = scores(sum.z, &Args::z), out = row_result(sum.result, &Args::out);
    const auto where = optional(mask("where", &Args::where));
    const auto bind_with = [&](auto... more) {
        bind<Args>(module, sum.name, sum.text, run, prepare, z, more..., where, beta("beta"), axes("axes"), out);
    };
    if (sum.other)
        bind_with(sum.optional ? optional(beside(sum.other, &Args::other)) : scores(sum.other, &Args::other));
    else if (sum.parameter) bind_with(rowwise(sum.parameter, &Args::parameter));
    else bind_with();
}

// Runs an operation on ragged rows: segment s is z[offsets[s]:offsets[s + 1]]. Each index of the other dimensions has
// separate rows.
void segments(Op op, nb::handle z_, nb::handle offsets_, nb::handle pair, nb::handle out_, nb::handle lse_) {
    const Integers offsets("offsets", offsets_);
    const HeldArray z(z_), out(out_, true), lse(lse_, true);
    must_be("z", z, kReal);
    must_be("out", out, kReal);
    must_be("lse", lse, kReal);
    if (z.shape.empty() || offsets.count < 1)
        throw nb::value_error("offsets: expected at least one offset, and z with at least one dimension");
    const std::int64_t count = offsets.count - 1;
    // Copy the offsets. The kernel uses them as addresses, and other threads of the caller may write to the original
    // array.
    const std::vector<std::int64_t> at(offsets.begin(), offsets.end());
    if (at.front() != 0 || at.back() != z.shape[0])
        throw nb::value_error(("offsets: expected bounds from 0 to " + std::to_string(z.shape[0]) +
                               ", the length of z, got " + std::to_string(at.front()) + " to " +
                               std::to_string(at.back()))
                                  .c_str());
    bool decreasing = false;
    for (std::size_t s = 1; s < at.size(); ++s) decreasing |= at[s] < at[s - 1];
    if (decreasing) throw nb::value_error("offsets: expected non-decreasing numbers, got some that decrease");
    // The plan has one row for each segment at each index of the other dimensions. In an operand with z's shape, a row
    // starts at the offset of its segment.
    View rows = z;
    rows.shape[0] = count;
    Call call(op);
    Plan plan(rows, Dims{});
    const auto along = [&](const char* name, Operand& to, const HeldArray& x) {
        if (x.shape != z.shape) throw nb::value_error((std::string(name) + ": expected the shape of z").c_str());
        View all = x;
        all.shape[0] = count;
        all.stride[0] = 0;
        plan.add(name, to, all, true);
    };
    along("z", call.job.z, z);
    if (op == Op::logsumexp) plan.add("out", call.job.out, out, true);
    else along("out", call.job.out, out);
    plan.add("lse", call.job.lse, lse, static_cast<bool>(lse));
    beta("beta").put(plan, call, beta("beta").read(pair));
    plan.finish(call.job);
    call.job.offsets = at.data();
    call.job.segments = count;
    call.job.heads = count ? call.job.rows.total / count : 1;
    call.job.cols.size[0] = call.job.cols.total = z.shape[0];
    call.job.z.col[0] = z.stride[0];
    call.job.out.col[0] = out.stride[0];
    call.segment_work = z.shape[0] * (count ? call.job.rows.total / count : 0);
    call.run(run);
}

// Binds a kernel for segments. `out` is the name of the result that has z's shape.
void bind_segments(nb::module_& module, const char* name, Op op, const char* text, const char* out) {
    module.def(name, [op](nb::handle z, nb::handle offsets, nb::handle pair, nb::handle p, nb::handle lse) {
        segments(op, z, offsets, pair, p, lse);
    }, "z"_a, "offsets"_a, "beta"_a, nb::arg(out), "lse"_a.none(), text);
    module.attr("ARGUMENTS")[name] = nb::make_tuple("z", "offsets", "beta", out, "lse");
}

// Computes lse / beta of each row from its state alone. No scores are folded into the state.
void finish(nb::handle m_, nb::handle r_, nb::handle low_, nb::handle pair, nb::handle lse_) {
    const HeldArray m(m_, true), r(r_, true), low(low_, true), lse(lse_, true);
    must_be("m", m, kDouble);
    must_be("r", r, kDouble);
    must_be("low", low, kDouble);
    must_be("lse", lse, kReal);
    Call call(Op::logsumexp);
    View rows = m;
    rows.shape.push_back(0);
    rows.stride.push_back(0);
    Plan plan(rows, Dims{static_cast<std::int64_t>(m.shape.size())});
    plan.add("m", call.job.z, rows, true);
    plan.add_row("m", call.job.m, m);
    plan.add_row("r", call.job.r, r);
    plan.add_row("low", call.job.low, low);
    plan.add_row("lse", call.job.out, lse);
    beta("beta").put(plan, call, beta("beta").read(pair));
    call.run(plan, run);
}

}  // namespace

void bind(nb::module_& module) {
    const auto z = scores("z", &Args::z);
    const auto where = optional(mask("where", &Args::where));
    const auto pair = beta("beta");
    const auto along = axes("axes");
    const auto p = result("p", &Args::out), log_p = result("log_p", &Args::out), gz = result("gz", &Args::out);
    const auto lse = optional(row_result("lse", &Args::lse)), m = row_state("m", &Args::m),
               r = row_state("r", &Args::r), low = row_state("low", &Args::low);
    const auto of_row = [](const char* name) { return row_result(name, &Args::out); };

    bind_rows(module, "softmax", Op::softmax,
              "exp(beta z - lse) into p; also lse, in nats, unless the argument lse is None", z, where, pair, along, p,
              lse);
    bind_rows(module, "log_softmax", Op::log_softmax,
              "beta z - lse into log_p; also lse, in nats, unless the argument lse is None", z, where, pair, along,
              log_p, lse);
    bind_rows(module, "logsumexp", Op::logsumexp, "lse / beta of each row; weights multiply the exponentials", z,
              optional(beside("weights", &Args::weights)), where, pair, along, of_row("lse"));
    bind_rows(module, "logcumsumexp", Op::logcumsumexp, "lse / beta of every prefix", z, where, pair, along,
              result("lse", &Args::out));
    bind_rows(module, "prefix_surprisals", Op::prefix_surprisals,
              "-log of the probability of each score in the softmax of its prefix", z, where, pair, along,
              result("surprisal", &Args::out));
    for (const NamedSum& sum : kSums) bind_sum(module, sum);

    bind_rows(module, "softmax_vjp", Op::softmax_vjp, "beta p (g - <p, g>) into gz; 0 in rows whose lse is +inf",
              scores("p", &Args::z), row("lse", &Args::lse), beside("g", &Args::other), pair, along, gz);
    bind_rows(module, "log_softmax_vjp", Op::log_softmax_vjp, "beta (g - p <1, g>) into gz", scores("log_p", &Args::z),
              row("lse", &Args::lse), beside("g", &Args::other), pair, along, gz);
    bind_rows(module, "logsumexp_vjp", Op::logsumexp_vjp, "p g into gz; g has one number per row",
              scores("p", &Args::z), row("g", &Args::lse), along, gz);

    bind_segments(module, "segment_softmax", Op::softmax, "softmax inside each segment of axis 0", "p");
    bind_segments(module, "segment_log_softmax", Op::log_softmax, "log_softmax inside each segment of axis 0", "log_p");
    module.def("segment_logsumexp", [](nb::handle z, nb::handle offsets, nb::handle pair, nb::handle lse) {
        segments(Op::logsumexp, z, offsets, pair, lse, nb::none());
    }, "z"_a, "offsets"_a, "beta"_a, "lse"_a, "lse / beta of each segment of axis 0");
    module.attr("ARGUMENTS")["segment_logsumexp"] = nb::make_tuple("z", "offsets", "beta", "lse");

    bind_rows(module, "fold", Op::fold, "fold a part of each row into its state m, r, low in place", z, where, pair,
              along, m, r, low);
    bind_rows(module, "apply_softmax", Op::apply_softmax, "softmax of a part of each row, from the state of the row", z,
              where, pair, along, m, r, low, p);
    bind_rows(module, "apply_log_softmax", Op::apply_log_softmax,
              "log_softmax of a part of each row, from the state of the row", z, where, pair, along, m, r, low, log_p);
    module.def("finish", &finish, "m"_a, "r"_a, "low"_a, "beta"_a, "lse"_a, "compute lse / beta from states, into lse");
}

}  // namespace softargmax::normalize
