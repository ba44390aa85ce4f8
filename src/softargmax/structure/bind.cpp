// Python bindings of the kernels of the log semiring. An argument is a batch of matrices: a contiguous array whose last
// two axes are those of the matrices.
#include "core/cpp/bind.hpp"

#include "structure/args.hpp"

namespace softargmax::structure {
namespace {

void agree(const char* name, std::int64_t& size, std::int64_t found) {
    if (size == kUnknown) size = found;
    if (size == found) return;
    throw nb::value_error(
        (std::string(name) + ": expected size " + std::to_string(size) + ", got " + std::to_string(found)).c_str());
}

// A batch of matrices whose numbers of rows and columns are members of Args. The first argument that has a number sets
// it.
struct MatricesField {
    using Value = HeldArray;
    const char* name;
    Matrices Args::* to;
    std::int64_t Args::*rows, Args::*cols;
    bool written = false, may_be_none = false;
    HeldArray read(nb::handle x) const {
        if (!may_be_none) must_be_given(name, x);
        return HeldArray(x, written);
    }
    void put(Args& args, const HeldArray& x) const {
        const bool unwanted = written && x.shape.size() == 1 && x.shape[0] == 0;
        if (!x || unwanted) return;
        const bool first = to == &Args::a, wide = to == &Args::wide;
        must_be(name, x, wide ? kDouble : first ? kWide : std::initializer_list<Type>{args.a.type});
        const std::size_t axes = x.shape.size();
        if (axes < 2 || !is_contiguous(x)) refuse(name, "contiguous matrices");
        std::int64_t items = 1;
        for (std::size_t d = 0; d + 2 < axes; ++d) items *= x.shape[d];
        agree(name, args.items, items);
        agree(name, args.*rows, x.shape[axes - 2]);
        agree(name, args.*cols, x.shape[axes - 1]);
        args.*to = {x.data, x.type};
    }
};
// beta = hi + lo: two numbers, or two arrays with one number per item.
struct ItemBetaField {
    struct Value {
        double numbers[2] = {1, 0};
        std::optional<HeldArray> hi, lo;
    };
    const char* name;
    Value read(nb::handle x) const {
        if (!PyTuple_Check(x.ptr()) || NB_TUPLE_GET_SIZE(x.ptr()) != 2)
            refuse(name, "a pair of floats, or of float64 arrays");
        const nb::handle hi = NB_TUPLE_GET_ITEM(x.ptr(), 0), lo = NB_TUPLE_GET_ITEM(x.ptr(), 1);
        Value value;
        if (PyFloat_Check(hi.ptr()) && PyFloat_Check(lo.ptr())) {
            value.numbers[0] = PyFloat_AsDouble(hi.ptr());
            value.numbers[1] = PyFloat_AsDouble(lo.ptr());
            return value;
        }
        value.hi.emplace(hi);
        value.lo.emplace(lo);
        return value;
    }
    void put(Args& args, Value& x) const {
        args.each = x.hi.has_value();
        args.hi = args.each ? numbers<const double>(name, *x.hi, args.items) : &x.numbers[0];
        args.lo = args.each ? numbers<const double>(name, *x.lo, args.items) : &x.numbers[1];
    }
};

template <class... Field>
void bind_batch(nb::module_& module, const char* name, const char* text, void (*kernel)(const Args&), Field... fields) {
    module.def(name, [=](Handle<Field>... inputs) {
        std::tuple<typename Field::Value...> values{fields.read(inputs)...};
        Args args;
        std::apply([&](auto&... value) { (fields.put(args, value), ...); }, values);
        if (args.items == 0) return;
        const std::int64_t work = args.items * args.rows * args.cols * std::max<std::int64_t>(args.depth, 1);
        args.threads = work < kParallel ? 1 : threads_now();
        const ReleasedGil released;
        kernel(args);
    }, nb::arg(fields.name).none()..., text);
    list_arguments(module, name, fields...);
}

// ---- linear chains ----------------------------------------------------------------------------------------------

// A contiguous array with the shape of the emissions, or of the transitions.
struct ChainField {
    using Value = HeldArray;
    const char* name;
    Matrices ChainArgs::* to;
    bool of_transitions = false, written = false;
    HeldArray read(nb::handle x) const {
        must_be_given(name, x);
        return HeldArray(x, written);
    }
    void put(ChainArgs& args, const HeldArray& x) const {
        must_be(name, x, to == &ChainArgs::emissions ? kWide : std::initializer_list<Type>{args.emissions.type});
        if (x.shape.size() != (of_transitions ? 4 : 3) || !is_contiguous(x))
            refuse(name, "a contiguous array of its axes");
        const Dims& n = x.shape;
        if (of_transitions) {
            agree(name, args.transition_items, n[0]);
            agree(name, args.transition_steps, n[1]);
            agree(name, args.tags, n[2]);
            agree(name, args.tags, n[3]);
            if ((n[0] != 1 && n[0] != args.items) || (n[1] != 1 && n[1] < args.length - 1))
                refuse(name, "one matrix for each item and step, or for all");
        } else {
            agree(name, args.items, n[0]);
            agree(name, args.length, n[1]);
            agree(name, args.tags, n[2]);
        }
        args.*to = {x.data, x.type};
    }
};
// Contiguous numbers, of which there are count(args).
template <class T> struct NumbersField {
    using Value = HeldArray;
    const char* name;
    T* ChainArgs::* to;
    std::int64_t (*count)(const ChainArgs&);
    HeldArray read(nb::handle x) const {
        must_be_given(name, x);
        return HeldArray(x, !std::is_const_v<T>);
    }
    void put(ChainArgs& args, const HeldArray& x) const { args.*to = numbers<T>(name, x, count(args)); }
};
struct PathsField {
    using Value = std::int64_t;
    const char* name;
    std::int64_t read(nb::handle x) const { return number_of<std::int64_t>(name, x); }
    void put(ChainArgs& args, std::int64_t x) const {
        if (x < 1) refuse(name, "1 or more");
        args.paths = x;
    }
};

template <class... Field>
void bind_chain(nb::module_& module, const char* name, const char* text, void (*kernel)(const ChainArgs&),
                Field... fields) {
    module.def(name, [=](Handle<Field>... inputs) {
        std::tuple<typename Field::Value...> values{fields.read(inputs)...};
        ChainArgs args;
        std::apply([&](auto&... value) { (fields.put(args, value), ...); }, values);
        for (std::int64_t item = 0; item < args.items; ++item)
            if (args.lengths[item] < 0 || args.lengths[item] > args.length)
                throw nb::value_error("lengths: expected numbers from 0 to the number of positions");
        args.threads = args.items * args.length * args.tags * args.tags * args.paths < kParallel ? 1 : threads_now();
        const ReleasedGil released;
        kernel(args);
    }, nb::arg(fields.name).none()..., text);
    list_arguments(module, name, fields...);
}

MatricesField matrices(const char* name, Matrices Args::* to, std::int64_t Args::* rows, std::int64_t Args::* cols) {
    return {name, to, rows, cols};
}
MatricesField result(MatricesField field) {
    field.written = true;
    return field;
}

}  // namespace

void bind(nb::module_& module) {
    const auto like_a = [](const char* name, Matrices Args::* to) {
        return matrices(name, to, &Args::rows, &Args::depth);
    };
    const auto like_b = [](const char* name, Matrices Args::* to) {
        return matrices(name, to, &Args::depth, &Args::cols);
    };
    const auto like_c = [](const char* name, Matrices Args::* to) {
        return matrices(name, to, &Args::rows, &Args::cols);
    };
    const auto a = like_a("a", &Args::a), b = like_b("b", &Args::b);
    const ItemBetaField beta{"beta"};

    bind_batch(module, "log_matmul", "Write log(sum_k e^(beta (a_ik + b_kj))) / beta to c, and to wide in float64",
               multiply, a, b, beta, result(like_c("c", &Args::c)),
               softargmax::optional(result(like_c("wide", &Args::wide))));
    bind_batch(
        module, "log_matmul_sums",
        "Write the weighted sums of p_ikj = e^(beta (a_ik + b_kj - wide_ij)) over k, j and i, unless an array has "
        "the shape (0,)",
        sum_terms, a, b, like_c("wide", &Args::wide), beta, softargmax::optional(like_c("w", &Args::w)),
        softargmax::optional(like_a("x", &Args::x)), softargmax::optional(like_b("y", &Args::y)),
        result(like_c("to_c", &Args::to_c)), result(like_a("to_a", &Args::to_a)), result(like_b("to_b", &Args::to_b)));

    const ChainField emissions{"emissions", &ChainArgs::emissions};
    const ChainField transitions{"transitions", &ChainArgs::transitions, true};
    const auto per_tag = [](const ChainArgs& args) { return args.tags; };
    const auto per_item = [](const ChainArgs& args) { return args.items; };
    const NumbersField<const double> start{"start", &ChainArgs::start, per_tag}, end{"end", &ChainArgs::end, per_tag};
    const NumbersField<const std::int64_t> lengths{"lengths", &ChainArgs::lengths, per_item};
    const NumbersField<double> log_z{"log_z", &ChainArgs::log_z, per_item},
        alpha{"alpha", &ChainArgs::alpha, [](const ChainArgs& args) { return args.items * args.length * args.tags; }};
    bind_chain(module, "linear_chain", "Write log Z and the forward sums of each sequence", forward_chain, emissions,
               transitions, start, end, lengths, log_z, alpha);
    bind_chain(module, "linear_chain_vjp", "Write g times the marginals of tags, and of pairs of tags", chain_marginals,
               emissions, transitions, start, end, lengths, alpha, log_z,
               NumbersField<const double>{"g", &ChainArgs::g, per_item},
               ChainField{"to_emissions", &ChainArgs::to_emissions, false, true},
               ChainField{"to_transitions", &ChainArgs::to_transitions, true, true});
    const NumbersField<double> scores{"scores", &ChainArgs::scores,
                                      [](const ChainArgs& args) { return args.items * args.paths; }};
    const NumbersField<std::int64_t> best{"best", &ChainArgs::best,
                                          [](const ChainArgs& args) { return args.items * args.paths * args.length; }};
    bind_chain(module, "linear_chain_best", "Write the largest scores of paths, and the tags of these paths",
               best_paths, emissions, transitions, start, end, lengths, PathsField{"num_paths"}, scores, best);
}

}  // namespace softargmax::structure
