// This room's kernels as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "core/native/arguments.hpp"

using namespace nb::literals;

namespace softargmax {
namespace {

using Counts = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// alpha as a number, or an array that broadcasts with the rows.
struct Alpha {
    double number = 0;
    std::optional<Held> array;
    Alpha(CallOf<SparseJob>& call, Plan& plan, nb::handle alpha) {
        if (PyFloat_Check(alpha.ptr())) {
            number = PyFloat_AsDouble(alpha.ptr());
            call.constant(call.job.alpha, number);
            return;
        }
        array.emplace(alpha);
        must_be("alpha", *array, {Type::f64});
        plan.add("alpha", call.job.alpha, *array);
    }
};

// p of the scores into `out`, their thresholds into `tau`, the numbers of p > 0 into `support`: each where it is given.
void sparse(nb::handle z_, nb::handle out_, const Axes& axes, nb::handle alpha_, nb::handle where_, nb::handle tau_,
            nb::handle support_) {
    const Held z(z_), out(out_, true), where(where_), tau(tau_, true);
    must_be("z", z, kReal);
    must_be("out", out, kReal);
    must_be("where", where, {Type::boolean});
    must_be("tau", tau, kReal);
    CallOf<SparseJob> call(Op::logsumexp);
    SparseJob& job = call.job;
    Plan plan(z, axes);
    plan.add("z", job.z, z, true);
    plan.add("out", job.out, out, static_cast<bool>(out));
    plan.add("where", job.where, where);
    plan.add_row("tau", job.tau, tau);
    const Alpha alpha(call, plan, alpha_);
    plan.finish(job);
    Counts support;
    if (!support_.is_none()) {
        support = nb::cast<Counts>(support_);
        if (static_cast<std::int64_t>(support.size()) != job.rows.total)
            throw nb::value_error("support: not one per row");
        job.support = support.data();
    }
    call.run(chosen_isa().run_sparse);
}

// From p, its thresholds and an incoming gradient g to the gradient of the scores.
void sparse_vjp(nb::handle p_, nb::handle tau_, nb::handle g_, nb::handle out_, const Axes& axes, nb::handle alpha_) {
    const Held p(p_), tau(tau_), g(g_), out(out_, true);
    must_be("p", p, kReal);
    must_be("tau", tau, kReal);
    must_be("g", g, kReal);
    must_be("out", out, kReal);
    CallOf<SparseJob> call(Op::softmax_vjp);
    SparseJob& job = call.job;
    job.gradient = true;
    Plan plan(p, axes);
    plan.add("p", job.z, p, true);
    plan.add_row("tau", job.tau, tau);
    plan.add("g", job.other, g, true);
    plan.add("out", job.out, out, true);
    const Alpha alpha(call, plan, alpha_);
    plan.finish(job);
    call.run(chosen_isa().run_sparse);
}

}  // namespace

void bind_sparse(nb::module_& module) {
    module.def("sparse", &sparse, "z"_a, "out"_a.none(), "axes"_a, "alpha"_a, "where"_a = nb::none(),
               "tau"_a = nb::none(), "support"_a = nb::none(),
               "p into out, the threshold of each row into tau, how many p are above 0 into support");
    module.def("sparse_vjp", &sparse_vjp, "p"_a, "tau"_a, "g"_a, "out"_a, "axes"_a, "alpha"_a,
               "the gradient of the scores into out");
}

}  // namespace softargmax
