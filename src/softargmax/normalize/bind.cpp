// This room's kernels as Python sees them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/native/arguments.hpp"

using namespace nb::literals;

namespace softargmax {
namespace {

// softmax and log_softmax, from scores or from a given state.
void probabilities(Op op, nb::handle z_, nb::handle out_, const Axes& axes, nb::handle hi, nb::handle lo,
                   nb::handle where_, nb::handle lse_, nb::handle m_, nb::handle r_, nb::handle low_) {
    const Held z(z_), out(out_, true), where(where_), lse(lse_, true), m(m_, true), r(r_, true), low(low_, true);
    must_be("z", z, kReal);
    must_be("out", out, kReal);
    must_be("where", where, {Type::boolean});
    must_be("lse", lse, kReal);
    must_be("m", m, {Type::f64});
    must_be("r", r, {Type::f64});
    must_be("low", low, {Type::f64});
    Call call(op);
    Plan plan(z, axes);
    plan.add("z", call.job.z, z, true);
    plan.add("out", call.job.out, out, true);
    plan.add("where", call.job.where, where);
    plan.add_row("lse", call.job.lse, lse);
    plan.add_row("m", call.job.m, m);
    plan.add_row("r", call.job.r, r);
    plan.add_row("low", call.job.low, low);
    call.scale(plan, hi, lo);
    call.run(plan);
}

void logsumexp(nb::handle z_, nb::handle out_, const Axes& axes, nb::handle hi, nb::handle lo, nb::handle weights_,
               nb::handle where_) {
    const Held z(z_), out(out_, true), weights(weights_), where(where_);
    must_be("z", z, kReal);
    must_be("out", out, kReal);
    must_be("weights", weights, kReal);
    must_be("where", where, {Type::boolean});
    Call call(Op::logsumexp);
    Plan plan(z, axes);
    plan.add("z", call.job.z, z, true);
    plan.add_row("out", call.job.out, out);
    plan.add("weights", call.job.weights, weights);
    plan.add("where", call.job.where, where);
    call.scale(plan, hi, lo);
    call.run(plan);
}

// A sum under the softmax of z along its rows.
void sum(Op op, nb::handle z_, nb::handle other_, nb::handle out_, const Axes& axes, nb::handle hi, nb::handle lo,
         nb::handle where_) {
    const Held z(z_), other(other_), out(out_, true), where(where_);
    must_be("z", z, kReal);
    must_be("other", other, kReal);
    must_be("out", out, kReal);
    must_be("where", where, {Type::boolean});
    if (op == Op::kl_divergence && !other) throw nb::value_error("other: None; it may be the scores of q");
    Call call(op);
    Plan plan(z, axes);
    plan.add("z", call.job.z, z, true);
    plan.add("other", call.job.other, other);
    plan.add_row("out", call.job.out, out);
    plan.add("where", call.job.where, where);
    call.scale(plan, hi, lo);
    call.run(plan);
}

void vjp(Op op, nb::handle p_, nb::handle g_, nb::handle out_, const Axes& axes, nb::handle hi, nb::handle lo,
         nb::handle lse_) {
    const Held p(p_), g(g_), out(out_, true), lse(lse_, true);
    must_be("p", p, kReal);
    must_be("g", g, kReal);
    must_be("out", out, kReal);
    must_be("lse", lse, kReal);
    Call call(op);
    Plan plan(p, axes);
    plan.add("p", call.job.z, p, true);
    plan.add("g", call.job.other, g);
    plan.add("out", call.job.out, out, true);
    plan.add_row("lse", call.job.lse, lse);
    call.scale(plan, hi, lo);
    call.run(plan);
}

void logcumsumexp(nb::handle z_, nb::handle out_, const Axes& axes) {
    const Held z(z_), out(out_, true);
    must_be("z", z, kReal);
    must_be("out", out, kReal);
    Call call(Op::logcumsumexp);
    Plan plan(z, axes);
    plan.add("z", call.job.z, z, true);
    plan.add("out", call.job.out, out, true);
    call.run(plan);
}

// Ragged rows: segment s holds z[offsets[s]:offsets[s + 1]], for each index of the trailing dimensions.
void segments(Op op, nb::handle z_, nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> offsets,
              nb::handle out_, nb::handle hi, nb::handle lo, nb::handle lse_) {
    const Held z(z_), out(out_, true), lse(lse_, true);
    must_be("z", z, kReal);
    must_be("out", out, kReal);
    must_be("lse", lse, kReal);
    if (z.shape.empty() || offsets.size() < 1)
        throw nb::value_error("offsets: z has no dimension to cut, or no offsets");
    const std::int64_t count = static_cast<std::int64_t>(offsets.size()) - 1;
    // A copy: they are addresses, and the caller's other threads may write to their own while the kernel runs.
    const std::vector<std::int64_t> at(offsets.data(), offsets.data() + offsets.size());
    if (at.front() != 0 || at.back() != z.shape[0])
        throw nb::value_error(("offsets: from " + std::to_string(at.front()) + " to " + std::to_string(at.back()) +
                               "; they may go from 0 to the length of z, " + std::to_string(z.shape[0]))
                                  .c_str());
    bool falls = false;
    for (std::size_t s = 1; s < at.size(); ++s) falls |= at[s] < at[s - 1];
    if (falls) throw nb::value_error("offsets: they decrease somewhere; they may only stay or grow");
    // The plan sees the rows (segments, trailing...); an operand as long as z starts at its own offset in a segment.
    View rows = z;
    rows.shape[0] = count;
    Call call(op);
    Plan plan(rows, {});
    const auto along = [&](const char* name, Operand& to, const Held& x) {
        if (x.shape != z.shape) throw nb::value_error((std::string(name) + ": its shape is not that of z").c_str());
        View all = x;
        all.shape[0] = count;
        all.stride[0] = 0;
        plan.add(name, to, all, true);
    };
    along("z", call.job.z, z);
    if (op == Op::logsumexp) plan.add("out", call.job.out, out, true);
    else along("out", call.job.out, out);
    plan.add("lse", call.job.lse, lse, static_cast<bool>(lse));
    call.scale(plan, hi, lo);
    plan.finish(call.job);
    call.job.offsets = at.data();
    call.job.segments = count;
    call.job.heads = count ? call.job.rows.total / count : 1;
    call.job.cols.size[0] = call.job.cols.total = z.shape[0];
    call.job.z.col[0] = z.stride[0];
    call.job.out.col[0] = out.stride[0];
    call.segment_work = z.shape[0] * (count ? call.job.rows.total / count : 0);
    call.run(chosen_isa().run);
}

}  // namespace

void bind_normalize(nb::module_& module) {
    const auto scores = [&](const char* name, Op op, const char* text) {
        module.def(name,
                   [op](nb::handle z, nb::handle out, const Axes& axes, nb::handle hi, nb::handle lo, nb::handle where,
                        nb::handle lse) {
            probabilities(op, z, out, axes, hi, lo, where, lse, nb::none(), nb::none(), nb::none());
        },
                   "z"_a, "out"_a, "axes"_a, "hi"_a = 1.0, "lo"_a = 0.0, "where"_a = nb::none(), "lse"_a = nb::none(),
                   text);
    };
    scores("softmax", Op::softmax, "exp(beta z - lse) into out; lse, in nats, where given");
    scores("log_softmax", Op::log_softmax, "beta z - lse into out; lse, in nats, where given");

    const auto from_state = [&](const char* name, Op op, const char* text) {
        module.def(name,
                   [op](nb::handle z, nb::handle m, nb::handle r, nb::handle low, nb::handle out, const Axes& axes,
                        nb::handle hi, nb::handle lo,
                        nb::handle where) { probabilities(op, z, out, axes, hi, lo, where, nb::none(), m, r, low); },
                   "z"_a, "m"_a, "r"_a, "low"_a, "out"_a, "axes"_a, "hi"_a = 1.0, "lo"_a = 0.0, "where"_a = nb::none(),
                   text);
    };
    from_state("apply_softmax", Op::apply_softmax, "softmax of a piece from the state of its whole rows");
    from_state("apply_log_softmax", Op::apply_log_softmax, "log_softmax of a piece from the state of its whole rows");

    module.def("logsumexp", &logsumexp, "z"_a, "out"_a, "axes"_a, "hi"_a = 1.0, "lo"_a = 0.0, "weights"_a = nb::none(),
               "where"_a = nb::none(), "lse / beta into out");
    module.def("logcumsumexp", &logcumsumexp, "z"_a, "out"_a, "axes"_a, "running log-sum-exp into out");

    const auto under_softmax = [&](const char* name, Op op, const char* text) {
        module.def(name,
                   [op](nb::handle z, nb::handle other, nb::handle out, const Axes& axes, nb::handle hi, nb::handle lo,
                        nb::handle where) { sum(op, z, other, out, axes, hi, lo, where); },
                   "z"_a, "other"_a.none(), "out"_a, "axes"_a, "hi"_a = 1.0, "lo"_a = 0.0, "where"_a = nb::none(),
                   text);
    };
    under_softmax("entropy", Op::entropy, "<p, -log p> into out (other: None)");
    under_softmax("expectation", Op::expectation, "<p, other> into out; of the positions where that is None");
    under_softmax("kl_divergence", Op::kl_divergence, "<p, log p - log q> into out, other being the scores of q");

    const auto derivative = [&](const char* name, Op op, const char* text) {
        module.def(name,
                   [op](nb::handle p, nb::handle g, nb::handle out, const Axes& axes, nb::handle hi, nb::handle lo,
                        nb::handle lse) { vjp(op, p, g, out, axes, hi, lo, lse); },
                   "p"_a, "g"_a, "out"_a, "axes"_a, "hi"_a = 1.0, "lo"_a = 0.0, "lse"_a = nb::none(), text);
    };
    derivative("softmax_vjp", Op::softmax_vjp, "beta p (g - <p, g>) into out; 0 in rows whose lse is +inf");
    derivative("log_softmax_vjp", Op::log_softmax_vjp, "beta (g - p sum g) into out, from log p");

    const auto ragged = [&](const char* name, Op op, const char* text) {
        module.def(
            name,
            [op](nb::handle z, nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> offsets,
                 nb::handle out, nb::handle hi, nb::handle lo,
                 nb::handle lse) { segments(op, z, offsets, out, hi, lo, lse); },
            "z"_a, "offsets"_a, "out"_a, "hi"_a = 1.0, "lo"_a = 0.0, "lse"_a = nb::none(), text);
    };
    ragged("segment_softmax", Op::softmax, "softmax inside each segment of axis 0");
    ragged("segment_log_softmax", Op::log_softmax, "log_softmax inside each segment of axis 0");
    ragged("segment_logsumexp", Op::logsumexp, "lse / beta of each segment of axis 0");
}

}  // namespace softargmax
