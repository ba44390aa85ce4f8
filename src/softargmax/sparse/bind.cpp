// Python bindings of this room's kernels.
#include <nanobind/stl/optional.h>

#include "core/cpp/bind.hpp"

#include "sparse/args.hpp"

namespace softargmax::sparse {
void bind(nb::module_& module) {
    const auto z = scores("z", &Args::z);
    const auto alpha = rowwise("alpha", &Args::alpha);
    const auto where = optional(mask("where", &Args::where));
    const auto pair = beta("beta");
    const auto along = axes("axes");
    const auto tau = row_result("tau", &Args::tau);
    const auto target = integers("target", &Args::target);
    const auto ignore_index = number("ignore_index", &Args::ignore_index);

    softargmax::bind<Args>(module, "entmax", "p; tau if it is not None", run, [](Args&) {}, z, alpha, where, pair,
                           along, result("p", &Args::out), optional(tau));
    softargmax::bind<Args>(module, "entmax_vjp", "s (g - <s, g> / <s, 1>) into gz, s = p^(2 - alpha)", run,
                           [](Args& args) { args.gradient = true; }, scores("p", &Args::z), row("tau", &Args::tau),
                           alpha, scores("g", &Args::other), along, result("gz", &Args::out));
    softargmax::bind<Args>(module, "entmax_threshold", "tau, and how many p are above 0", run, [](Args&) {}, z, alpha,
                           where, pair, along, tau, integers("support_size", &Args::support));
    softargmax::bind<Args>(module, "entmax_loss", "the loss of each row's class; its root, if it is not None",
                           unless_wrong_class<run, Args>, [](Args&) {}, z, target, alpha, where, pair, along,
                           ignore_index, dense("loss", &Args::loss),
                           optional(dense("roots", &Args::roots, kRootNumbers)));
    softargmax::bind<Args>(module, "entmax_loss_vjp", "g (p - target) into gz, from the roots",
                           unless_wrong_class<run, Args>, [](Args&) {}, z, target, alpha, where, pair, along,
                           ignore_index, dense("g", &Args::g), dense("roots", &Args::found, kRootNumbers),
                           result("gz", &Args::out));
}

}  // namespace softargmax::sparse
