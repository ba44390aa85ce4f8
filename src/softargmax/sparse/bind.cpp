// Python bindings of the kernels of the sparse maps.
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

    softargmax::bind<Args>(module, "entmax", "Write p, and tau if it is not None", run, [](Args&) {}, z, alpha, where,
                           pair, along, result("p", &Args::out), optional(tau));
    softargmax::bind<Args>(module, "entmax_vjp", "Write s (g - <s, g> / <s, 1>) to gz, with s = p^(2 - alpha)", run,
                           [](Args& args) { args.gradient = true; }, scores("p", &Args::z), row("tau", &Args::tau),
                           alpha, scores("g", &Args::other), along, result("gz", &Args::out));
    softargmax::bind<Args>(module, "entmax_threshold", "Write tau, and the number of p above 0", run, [](Args&) {}, z,
                           alpha, where, pair, along, tau, integers("support_size", &Args::support));
    softargmax::bind<Args>(
        module, "entmax_loss", "Write the loss of each row for its class, and the roots if `roots` is not None",
        unless_wrong_class<run, Args>, [](Args&) {}, z, target, alpha, where, pair, along, ignore_index,
        dense("loss", &Args::loss), optional(dense("roots", &Args::roots, kRootNumbers)));
    softargmax::bind<Args>(module, "entmax_loss_vjp", "Write g (p - target) to gz, computed from the saved roots",
                           unless_wrong_class<run, Args>, [](Args&) {}, z, target, alpha, where, pair, along,
                           ignore_index, dense("g", &Args::g), dense("roots", &Args::found, kRootNumbers),
                           result("gz", &Args::out));
}

}  // namespace softargmax::sparse
