// This room's kernels as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "core/native/arguments.hpp"
#include "loss/args.hpp"

using namespace nb::literals;

namespace softargmax::loss {
namespace {

// Losses of rows, their states, and where `out` is given the gradients. `target`: classes in the order of the rows,
// else `other` holds probabilities. With `given` states the scores are not folded again. Returns how many rows are not
// ignored.
std::int64_t cross_entropy(
    nb::handle z_, std::optional<nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>> target,
    nb::handle states_, const Axes& axes, bool given, nb::handle other_, nb::handle weight_, nb::handle where_,
    nb::handle hi, nb::handle lo, std::int64_t ignore_index, double label_smoothing, double z_loss, double softcap,
    double least, nb::handle loss_, nb::handle lse_, nb::handle out_, nb::handle seed_) {
    const Held z(z_), other(other_), weight(weight_), where(where_), states(states_, !given), loss(loss_, true),
        lse(lse_, true), out(out_, true), seed(seed_);
    must_be("z", z, kReal);
    must_be("other", other, kReal);
    must_be("weight", weight, kReal);
    must_be("where", where, {Type::boolean});
    must_be("out", out, kReal);
    CallOf<Args> call;
    Args& job = call.job;
    Plan plan(z, axes);
    plan.add("z", job.z, z, true);
    plan.add("other", job.other, other, static_cast<bool>(other));
    plan.add("weight", job.weight, weight);
    plan.add("where", job.where, where);
    plan.add("out", job.out, out, static_cast<bool>(out));
    call.scale(plan, hi, lo);
    plan.finish(job);
    const std::int64_t rows = job.rows.total;
    job.states = numbers<double>("states", states, 3 * rows);
    job.loss = numbers<double>("loss", loss, rows);
    job.lse = numbers<double>("lse", lse, rows);
    const bool one = seed && seed.shape.empty();
    job.seed = numbers<const double>("seed", seed, one ? 1 : rows);
    job.seed_stride = one ? 0 : 1;
    if (!job.states || (out && !seed) || (!target && !other))
        throw nb::value_error("states, target and seed: there have to be some");
    std::int64_t counted = rows;
    if (target) {
        job.target = target->data();
        counted =
            check_classes(job.target, static_cast<std::int64_t>(target->size()), rows, job.cols.total, ignore_index);
    }
    job.ignore_index = ignore_index;
    job.label_smoothing = label_smoothing;
    job.z_loss = z_loss;
    job.softcap = softcap;
    job.least = least;
    job.folds = !given;
    call.run(run);
    return counted;
}

}  // namespace

void bind(nb::module_& module) {
    module.def(
        "cross_entropy", &cross_entropy, "z"_a, "target"_a.none(), "states"_a, "axes"_a, nb::kw_only(),
        "given"_a = false, "other"_a = nb::none(), "weight"_a = nb::none(), "where"_a = nb::none(), "hi"_a = 1.0,
        "lo"_a = 0.0, "ignore_index"_a = -100, "label_smoothing"_a = 0.0, "z_loss"_a = 0.0, "softcap"_a = 0.0,
        "least"_a = 0.0, "loss"_a = nb::none(), "lse"_a = nb::none(), "out"_a = nb::none(), "seed"_a = nb::none(),
        "the loss of every row and its state; the gradient, times seed, into out; how many rows are not ignored");
}

}  // namespace softargmax::loss
