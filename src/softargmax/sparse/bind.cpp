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

// The Fenchel-Young loss of each row's class into `loss`, and its gradient times `seed` into `out`, each where it is
// given. `roots`, five numbers a row, are written, or where they are `given`, read in place of the search.
void sparse_loss(nb::handle z_, nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> target,
                 nb::handle roots_, const Axes& axes, nb::handle alpha_, nb::handle where_, std::int64_t ignore_index,
                 bool given, nb::handle loss_, nb::handle out_, nb::handle seed_) {
    const Held z(z_), roots(roots_, !given), where(where_), loss(loss_, true), out(out_, true), seed(seed_);
    must_be("z", z, kReal);
    must_be("where", where, {Type::boolean});
    must_be("out", out, kReal);
    CallOf<SparseJob> call(Op::logsumexp);
    SparseJob& job = call.job;
    Plan plan(z, axes);
    plan.add("z", job.z, z, true);
    plan.add("out", job.out, out, static_cast<bool>(out));
    plan.add("where", job.where, where);
    const Alpha alpha(call, plan, alpha_);
    plan.finish(job);
    const std::int64_t rows = job.rows.total;
    job.roots = numbers<double>("roots", roots, 5 * rows);
    job.loss = numbers<double>("loss", loss, rows);
    const bool one = seed && seed.shape.empty();
    job.seed = numbers<const double>("seed", seed, one ? 1 : rows);
    job.seed_stride = one ? 0 : 1;
    if (!job.roots || (out && !seed)) throw nb::value_error("roots, seed: there have to be some");
    job.target = target.data();
    job.ignore_index = ignore_index;
    job.given = given;
    check_classes(job.target, static_cast<std::int64_t>(target.size()), rows, job.cols.total, ignore_index);
    call.run(chosen_isa().run_sparse);
}

}  // namespace

void bind_sparse(nb::module_& module) {
    module.def("sparse", &sparse, "z"_a, "out"_a.none(), "axes"_a, "alpha"_a, "where"_a = nb::none(),
               "tau"_a = nb::none(), "support"_a = nb::none(),
               "p into out, the threshold of each row into tau, how many p are above 0 into support");
    module.def("sparse_vjp", &sparse_vjp, "p"_a, "tau"_a, "g"_a, "out"_a, "axes"_a, "alpha"_a,
               "the gradient of the scores into out");
    module.def("sparse_loss", &sparse_loss, "z"_a, "target"_a, "roots"_a, "axes"_a, "alpha"_a, nb::kw_only(),
               "where"_a = nb::none(), "ignore_index"_a = -100, "given"_a = false, "loss"_a = nb::none(),
               "out"_a = nb::none(), "seed"_a = nb::none(),
               "the Fenchel-Young loss of every row, and its gradient times seed");
}

}  // namespace softargmax
