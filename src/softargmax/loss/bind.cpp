// Python bindings of this room's kernels.
#include <nanobind/stl/optional.h>

#include <cstring>

#include "core/cpp/bind.hpp"
#include "loss/args.hpp"

using namespace nb::literals;

namespace softargmax::loss {
namespace {

// Contiguous numbers, one per group of rows.
struct GroupedField {
    using Value = HeldArray;
    const char* name;
    Grouped Args::* to;
    std::initializer_list<Type> types;
    bool written, may_be_none = false;
    HeldArray read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        HeldArray held(x, written);
        must_be(name, held, types);
        return held;
    }
    void put(Plan& plan, CallOf<Args>& call, const HeldArray& x) const {
        if (!x) return;
        std::int64_t count = 1;
        bool dense = true;
        for (std::size_t d = x.shape.size(); d-- > 0;) {
            dense = dense && (x.shape[d] == 1 || x.stride[d] == count);
            count *= x.shape[d];
        }
        const std::int64_t rows = plan.rows();
        if ((!dense && count > 0) || (count == 0 ? rows != 0 : rows % count != 0))
            throw nb::value_error((std::string(name) + ": expected numbers of groups of the rows").c_str());
        call.job.*to = {x.data, x.type, count};
        // Without rows no kernel runs; the loss of each group is 0.
        if (written && rows == 0)
            std::memset(x.data, 0, static_cast<std::size_t>(count * kTypeBytes[static_cast<int>(x.type)]));
    }
};

}  // namespace

void bind(nb::module_& module) {
    const auto least = number("least", &Args::least);
    const GroupedField loss{"loss", &Args::loss, kReal, true}, g{"g", &Args::g, kDouble, false};
    const auto gradient = result("gradient", &Args::out);

    const auto bind_rows = [&](const char* name, const char* text, const auto&... more) {
        softargmax::bind<Args>(module, name, text, unless_wrong_class<run, Args>, [](Args&) {}, scores("z", &Args::z),
                               optional(integers("target", &Args::target)),
                               optional(beside("probabilities", &Args::other)),
                               optional(beside("weight", &Args::weight)), optional(mask("where", &Args::where)),
                               beta("beta"), axes("axes"), number("ignore_index", &Args::ignore_index),
                               number("label_smoothing", &Args::label_smoothing), number("z_loss", &Args::z_loss),
                               number("softcap", &Args::softcap), number("mean", &Args::mean), more...);
    };
    bind_rows("cross_entropy",
              "the loss of groups of rows; the rows' states, if they are not None; the first row whose "
              "class does not exist",
              loss, optional(dense("states", &Args::states, 3)));
    bind_rows("cross_entropy_and_gradient", "the same; the gradient of every group's loss, times g if there is one",
              loss, optional(g), least, gradient);
    bind_rows("cross_entropy_vjp", "g times the gradient of every group's loss, from the rows' states",
              optional(dense("states", &Args::given, 3)), g, least, gradient);
}

}  // namespace softargmax::loss
