// Python bindings of the loss kernels.
#include <nanobind/stl/optional.h>

#include <cstring>
#include <memory>

#include "core/cpp/allocator.hpp"
#include "core/cpp/bind.hpp"
#include "loss/args.hpp"

using namespace nb::literals;

namespace softargmax::loss {
namespace {

// An argument with one number per group of rows, in contiguous memory.
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
    template <class J> void put(Plan& plan, CallOf<J>& call, const HeldArray& x) const {
        if (!x) return;
        const std::int64_t count = size_of(x), rows = plan.rows();
        if (!is_contiguous(x) || (count == 0 ? rows != 0 : rows % count != 0))
            throw nb::value_error(
                (std::string(name) + ": expected contiguous memory with one number per group of rows").c_str());
        call.job.*to = {x.data, x.type, count};
        // Without rows no kernel runs, and the loss of each group is 0.
        if (written && rows == 0)
            std::memset(x.data, 0, static_cast<std::size_t>(count * kTypeBytes[static_cast<int>(x.type)]));
    }
};

// A last layer, and memory for the scores of a part of the rows. `scores` points to this memory, but has the shape of
// the scores of all rows, because the plan needs that shape.
struct Layer {
    HeldArray h, w, bias;
    View scores;
    std::int64_t rows_at_once = 0;
    std::unique_ptr<char[]> small;
    std::size_t pooled = 0;

    Layer(nb::handle h_, nb::handle w_, nb::handle bias_, const Processes& processes, bool by_rows)
        : h(h_), w(w_), bias(bias_) {
        must_be("h", h, kReal);
        must_be("w", w, kReal);
        must_be("bias", bias, kReal);
        if (h.shape.size() != 2 || w.shape.size() != 2 || h.shape[1] != w.shape[1])
            throw nb::value_error("h, w: expected shapes (N, D) and (K, D)");
        const std::int64_t rows = h.shape[0], classes = w.shape[0];
        if (bias && bias.shape != Dims{classes}) throw nb::value_error("bias: expected one number per class");
        scores.type = h.type == Type::f64 || w.type == Type::f64 ? Type::f64 : Type::f32;
        scores.shape = {rows, classes};
        scores.stride = {classes, 1};
        // The bits of dW depend on how rows are divided. So all processes divide them as one process would.
        const std::int64_t all = processes ? processes.shards().length() : 0;
        rows_at_once = loss::rows_at_once(by_rows ? all : rows, h.shape[1], all && !by_rows ? all : classes, kParts);
        const auto count = static_cast<std::size_t>(std::min(rows_at_once, rows) * classes);
        const std::size_t bytes = count * kTypeBytes[static_cast<int>(scores.type)];
        if (bytes >= kPooled) pooled = bytes;
        else small.reset(new char[bytes + 1]);
        scores.data = pooled ? static_cast<char*>(Allocator::instance().take(pooled)) : small.get();
        if (!scores.data) throw std::bad_alloc();
    }
    ~Layer() {
        if (pooled) Allocator::instance().give(scores.data, pooled);
    }
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;

    void put(Plan& plan, CallOf<LinearArgs>& call) const {
        LinearArgs& job = call.job;
        plan.add("scores", job.z, scores, true);
        job.h = {h.data, h.type, h.stride[0], h.stride[1]};
        job.w = {w.data, w.type, w.stride[0], w.stride[1]};
        if (bias) job.bias = {bias.data, bias.type, bias.stride[0], 0};
        job.width = h.shape[1];
        job.streams_dw = size_of(w) * kTypeBytes[static_cast<int>(scores.type)] >= streaming_bytes();
        job.rows_at_once = rows_at_once;
        call.passes = 1 + job.width;
    }
};

// Points `job.*to` at x, the memory for the gradient of h, W or bias. If this gradient is not requested, x has the
// shape (0,), and the pointer stays null.
void put_gradient(const char* name, const HeldArray& x, const Layer& layer, Dims shape, char* LinearArgs::* to,
                  LinearArgs& job) {
    if (!x || x.shape != shape) return;
    if (!is_contiguous(x)) throw nb::value_error((std::string(name) + ": expected contiguous memory").c_str());
    must_be(name, x, {layer.scores.type});
    job.*to = x.data;
    // Without rows the gradients are 0, to which other processes may add.
    if (layer.h.shape[0] == 0)
        std::memset(x.data, 0, static_cast<std::size_t>(size_of(x) * kTypeBytes[static_cast<int>(x.type)]));
}

// Returns the first row of each part of the rows, and the number of rows.
nb::typed<nb::tuple, std::int64_t, nb::ellipsis> bounds_of_parts(std::int64_t rows, std::int64_t width,
                                                                 std::int64_t classes, std::int64_t parts) {
    const std::int64_t at_once = rows_at_once(rows, width, classes, parts);
    nb::list bounds;
    for (std::int64_t begin = 0; begin < rows; begin = end_of_part(begin, rows, at_once)) bounds.append(begin);
    bounds.append(rows);
    return nb::tuple(bounds);
}

// The name of an argument that `bind_linear` reads itself. Such an argument has no entry in `fields`.
struct Named {
    const char* name;
};
template <class... Field> void bind_linear(nb::module_& module, const char* name, const char* text, Field... fields) {
    module.def(name,
               [=](nb::handle h, nb::handle w, nb::handle bias, nb::handle spread, bool by_rows, std::int64_t kept,
                   Handle<Field>... inputs, nb::handle dh_, nb::handle dw_, nb::handle db_) {
        const Processes processes(spread);
        by_rows = by_rows && processes;
        const Layer layer(h, w, bias, processes, by_rows);
        std::tuple<typename Field::Value...> values{fields.read(inputs)...};
        const HeldArray dh(dh_, true), dw(dw_, true), db(db_, true);
        CallOf<LinearArgs> call;
        Plan plan(layer.scores, Dims{1});
        layer.put(plan, call);
        if (by_rows) call.job.row_shards = processes.shards();
        else call.spread(processes);
        const Shards& of_rows = call.job.row_shards;
        if (by_rows && of_rows.sizes[of_rows.rank] != layer.h.shape[0])
            throw nb::value_error("spread: expected the number of rows in this process");
        call.takes_part = by_rows;
        call.job.per_row = kept > 0;
        std::apply([&](auto&... value) { (fields.put(plan, call, value), ...); }, values);
        put_gradient("dh", dh, layer, layer.h.shape, &LinearArgs::dh, call.job);
        put_gradient("dw", dw, layer, layer.w.shape, &LinearArgs::dw, call.job);
        put_gradient("db", db, layer, Dims{layer.w.shape[0]}, &LinearArgs::db, call.job);
        return call.run(plan, unless_wrong_class<run_linear, LinearArgs>);
    },
               "h"_a, "w"_a, "bias"_a.none(), "spread"_a.none(), "by_rows"_a, "kept"_a, nb::arg(fields.name).none()...,
               "dh"_a, "dw"_a, "db"_a, text);
    list_arguments(module, name, Named{"h"}, Named{"w"}, Named{"bias"}, Named{"spread"}, Named{"by_rows"},
                   Named{"kept"}, fields..., Named{"dh"}, Named{"dw"}, Named{"db"});
}

}  // namespace

void bind(nb::module_& module) {
    const auto least = number("least", &Args::least);
    const GroupedField loss{"loss", &Args::loss, kReal, true}, g{"g", &Args::g, kDouble, false};
    const auto gradient = result("gradient", &Args::out);

    const auto with_options = [&](auto bind, const auto&... more) {
        bind(optional(integers("target", &Args::target)), optional(beside("probabilities", &Args::other)),
             optional(beside("weight", &Args::weight)), optional(mask("where", &Args::where)), beta("beta"),
             number("ignore_index", &Args::ignore_index), number("label_smoothing", &Args::label_smoothing),
             number("z_loss", &Args::z_loss), number("softcap", &Args::softcap), number("mean", &Args::mean), more...);
    };
    const auto bind_rows = [&](const char* name, const char* text, const auto&... more) {
        with_options([&](const auto&... fields) {
            softargmax::bind<Args>(module, name, text, unless_wrong_class<run, Args>, [](Args&) {},
                                   scores("z", &Args::z), axes("axes"), fields...);
        }, more...);
    };
    bind_rows("cross_entropy",
              "the loss of each group of rows; the state of each row if states is not None; returns the first row "
              "whose class is out of range",
              loss, optional(dense("states", &Args::states, 3)));
    bind_rows("cross_entropy_and_gradient",
              "as cross_entropy; also the gradient of the loss of each group, times g if g is not None", loss,
              optional(g), least, gradient);
    bind_rows("cross_entropy_vjp", "g times the gradient of the loss of each group, from the state of each row",
              optional(dense("states", &Args::given, 3)), g, least, gradient);

    const auto bind_layer = [&](const char* name, const char* text, const auto&... more) {
        with_options([&](const auto&... fields) { bind_linear(module, name, text, fields...); }, more...);
    };
    bind_layer(
        "linear_cross_entropy",
        "the loss of a last layer; also each gradient dh, dw, db, unless its array has the shape (0,); returns the "
        "first row whose class is out of range",
        loss, least);
    bind_layer("linear_cross_entropy_vjp", "g times the gradients of the loss of a last layer", g, least);
    module.def("bounds_of_parts", &bounds_of_parts, "rows"_a, "width"_a, "classes"_a, "parts"_a,
               "the bounds of the parts of the rows whose scores a kernel of a last layer computes at once");
    module.def("classes_at_once", &classes_at_once, "classes"_a, "width"_a,
               "the number of classes whose gradient of W is passed on at once, if rows are spread over processes");
    module.attr("PARTS") = kParts;
}

}  // namespace softargmax::loss
