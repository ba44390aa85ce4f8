// Python bindings of the attention kernels. Each Python argument is stored in a field of the kernel's `Args`
// (core/cpp/bind.hpp). An axis along which an argument is broadcast gets the stride 0.
#include "core/cpp/bind.hpp"

#include "attend/args.hpp"

using namespace nb::literals;

namespace softargmax::attend {
namespace {

using Flags = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

// The page table: for each entry of the batch, the indices of its pages.
struct Table : Integers {
    using Integers::Integers;
};

// The last two axes of an array. `Per`: one row per query or per key. `Count`: the number of columns.
enum class Per { query, key };
enum class Count { one, width, values, keys };

// Checks the arrays of a call and stores them in the kernel's arguments. With a page table, k and v have the shape
// (pages, page size, heads, width).
template <class J> struct Call {
    J job;
    Dims batch;
    std::vector<std::uint8_t> nonfinite;

    template <class Values> explicit Call(const Values& values) {
        const HeldArray &q = std::get<0>(values), &k = std::get<1>(values), &v = std::get<2>(values);
        must_be("k", k, {q.type});
        must_be("v", v, {q.type});
        const Integers* table = nullptr;
        if constexpr (std::is_same_v<std::tuple_element_t<3, Values>, Table>) table = &std::get<3>(values);
        sizes(q, k, v, table);
        if (table) pages(*table, k, v);
    }
    std::int64_t heads() const { return job.batch.total * job.heads; }
    std::int64_t queries() const { return heads() * job.queries; }

    void add(const char* name, Operand& to, const View& x, Per per, Count count, bool exact) const {
        if (!x) return;
        const Dims shape = shape_of(per, count);
        const std::size_t dims = shape.size(), missing = dims - x.shape.size();
        if (x.shape.size() > dims || (exact && missing)) refuse(name);
        Dims stride(dims, 0);
        for (std::size_t d = missing; d < dims; ++d) {
            const std::int64_t size = x.shape[d - missing];
            if (size != shape[d] && (exact || size != 1)) refuse(name);
            if (size == shape[d]) stride[d] = x.stride[d - missing];
        }
        to.data = x.data;
        to.type = x.type;
        to.row[0] = 0;  // stays 0 without batch axes: the batch is then one entry
        std::copy(stride.begin(), stride.end() - 1, to.row + (batch.empty() ? 1 : 0));
        to.col[0] = stride.back();
    }
    // Sets an operand to one number for all queries.
    static void constant(Operand& to, double& value) {
        to.data = reinterpret_cast<char*>(&value);
        to.type = Type::f64;
        std::fill(std::begin(to.row), std::end(to.row), 0);
        to.col[0] = 0;
    }
    // Runs the kernel. Returns the array of flags if any flag is set, else None.
    template <class Kernel> nb::object run(Kernel kernel, std::int64_t flags) {
        if (queries() == 0) return nb::none();
        if (!job.scale.value || !job.out) throw nb::value_error("scale, output: expected arrays, got None");
        if constexpr (std::is_same_v<J, GradientArgs>) {
            if (!job.lse || !job.seed || !job.dq || !job.dk || !job.dv || !job.delta)
                throw nb::value_error("lse, g, dq, dk, dv, delta: expected arrays, got None");
            if (job.dbias && job.dbias.type != (job.q.type == Type::f64 ? Type::f64 : Type::f32))
                throw nb::type_error("dbias: expected the type in which the kernel computes");
        }
        for (std::int64_t e = 0; job.lengths && e < job.batch.total; ++e)
            if (job.lengths[e] < 0 || job.lengths[e] > job.all_keys())
                throw nb::value_error(
                    "key_lengths: expected numbers from 0 to the number of keys, got a number out of range");
        check_pages();
        job.dropout = job.seeds ? job.dropout : 0;
        const std::int64_t work =
            queries() * std::max<std::int64_t>(job.keys, 1) * std::max<std::int64_t>(job.width, 1);
        job.threads = work < kParallel ? 1 : threads_now();
        nonfinite.resize(static_cast<std::size_t>(flags));
        job.nonfinite = nonfinite.data();
        {
            const ReleasedGil released;
            kernel(job);
        }
        if (!job.any_nonfinite) return nb::none();
        auto* const kept = new std::vector<std::uint8_t>(std::move(nonfinite));
        const nb::capsule owner(kept, [](void* x) noexcept { delete static_cast<std::vector<std::uint8_t>*>(x); });
        return nb::cast(Flags(kept->data(), {kept->size()}, owner));
    }

  private:
    std::int64_t page_count = 0;

    [[noreturn]] static void refuse(const char* name) {
        throw nb::value_error((std::string(name) + ": expected a shape that fits q, k and v").c_str());
    }
    void sizes(const View& q, const View& k, const View& v, bool paged) {
        const std::size_t dims = q.shape.size(), heads = paged ? 2 : dims - 3, rows = paged ? 1 : dims - 2;
        if (dims < 3 || dims > kMaxDims - 1 || k.shape.size() != (paged ? 4 : dims) || v.shape.size() != k.shape.size())
            throw nb::value_error("q, k, v: expected shape (batch..., heads, length, width)");
        for (std::size_t d = 0; d + 3 < dims; ++d) batch.push_back(q.shape[d]);
        job.batch.dims = std::max(1, static_cast<int>(batch.size()));
        job.batch.size[0] = 1;
        for (std::size_t d = 0; d < batch.size(); ++d) job.batch.total *= job.batch.size[d] = batch[d];
        job.heads = q.shape[dims - 3];
        job.queries = q.shape[dims - 2];
        job.width = q.shape[dims - 1];
        job.groups = k.shape[heads];
        job.keys = k.shape[rows];
        job.values = v.shape.back();
        if (job.heads > 0 && (job.groups == 0 || job.heads % job.groups != 0))
            throw nb::value_error("k: expected a number of heads that divides q's");
    }
    Dims shape_of(Per per, Count count) const {
        const std::int64_t counts[] = {1, job.width, job.values, job.keys};
        Dims all = batch;
        all.push_back(per == Per::key ? job.groups : job.heads);
        all.push_back(per == Per::key ? job.keys : job.queries);
        all.push_back(counts[static_cast<int>(count)]);
        return all;
    }

    // ---- pages --------------------------------------------------------------------------------------------------

    void pages(const Integers& table, const View& k, const View& v) {
        const std::int64_t size = table.count, entries = job.batch.total;
        if (batch.size() != 1 || (entries ? size % entries : size))
            throw nb::value_error("page_table: expected one row per entry of the batch");
        if (v.shape[0] != k.shape[0] || v.shape[1] != k.shape[1] || v.shape[2] != k.shape[2] || k.shape[3] != job.width)
            throw nb::value_error("k, v: expected shape (pages, page size, heads, width), equal except for the width");
        job.table = table.begin();
        job.pages = entries ? size / entries : 0;
        job.page = k.shape[1];
        job.keys = job.pages * job.page;
        page_count = k.shape[0];
        add_pages(job.k, k);
        add_pages(job.v, v);
    }
    static void add_pages(Operand& to, const View& x) {
        to.data = x.data;
        to.type = x.type;
        to.row[0] = x.stride[0];
        to.row[1] = x.stride[2];
        to.row[2] = x.stride[1];
        to.col[0] = x.stride[3];
    }
    // Checks the page indices of all keys, up to the length of each entry of the batch.
    void check_pages() const {
        for (std::int64_t e = 0; job.table && e < job.batch.total; ++e) {
            const std::int64_t keys = job.lengths ? job.lengths[e] : job.keys;
            for (std::int64_t i = 0; i * job.page < keys; ++i) {
                const std::int64_t page = job.table[e * job.pages + i];
                if (page < 0 || page >= page_count)
                    throw nb::index_error(("page_table: expected pages from 0 to " + std::to_string(page_count - 1) +
                                           ", got " + std::to_string(page) + " in row " + std::to_string(e))
                                              .c_str());
            }
        }
    }
};

// ---- fields ---------------------------------------------------------------------------------------------------------

template <class B> struct ArrayField {
    using Value = HeldArray;
    const char* name;
    Operand B::* to;
    Per per;
    Count count;
    bool exact, written;
    std::initializer_list<Type> types;
    HeldArray read(nb::handle x) const {
        HeldArray held(x, written);
        must_be(name, held, types);
        return held;
    }
    template <class J> void put(Call<J>& call, HeldArray& x) const {
        call.add(name, call.job.*to, x, per, count, exact);
    }
};
template <class B> ArrayField<B> input(const char* name, Operand B::* to, Per per, Count count) {
    return {name, to, per, count, true, false, kReal};
}
template <class B> ArrayField<B> written(const char* name, Operand B::* to, Per per, Count count) {
    return {name, to, per, count, true, true, kReal};
}
ArrayField<Args> broadcastable(const char* name, Operand Args::* to, Per per, Count count) {
    return {name, to, per, count, false, false, kReal};
}

// Pages of keys or values. The constructor of Call reads them, so `put` does nothing.
struct PagesField {
    using Value = HeldArray;
    const char* name;
    HeldArray read(nb::handle x) const {
        HeldArray held(x);
        must_be(name, held, kReal);
        return held;
    }
    template <class J> void put(Call<J>&, HeldArray&) const {}
};
struct TableField {
    using Value = Table;
    const char* name;
    Table read(nb::handle x) const { return Table(name, x); }
    template <class J> void put(Call<J>&, Table&) const {}
};

// An option that is one number for all queries, or an array with one number per query. `gradient` is the name of the
// argument for the option's gradient.
struct LearnedField {
    struct Value {
        std::optional<double> number;
        HeldArray array;
    };
    const char *name, *gradient;
    Learned Args::* to;
    std::initializer_list<Type> types;
    Value read(nb::handle x) const {
        const bool one = PyFloat_Check(x.ptr());
        Value value{one ? std::optional(PyFloat_AsDouble(x.ptr())) : std::nullopt, HeldArray(one ? nb::none() : x)};
        must_be(name, value.array, types);
        return value;
    }
    template <class J> void put(Call<J>& call, Value& x) const {
        Operand& value = (call.job.*to).value;
        if (x.array) call.add(name, value, x.array, Per::query, Count::one, false);
        else if (x.number) call.constant(value, *x.number);
    }
};
// The gradient of a LearnedField: an array with one float64 per query, or None.
struct LearnedGradient {
    using Value = HeldArray;
    const char* name;
    Learned Args::* to;
    HeldArray read(nb::handle x) const { return HeldArray(x, true); }
    template <class J> void put(Call<J>& call, HeldArray& x) const {
        (call.job.*to).gradient = numbers<double>(name, x, call.queries());
    }
};
// Returns the LearnedGradient of a learned option, and nothing for other fields. `gradients_of` joins the results of
// all options.
template <class Field> std::tuple<> gradient_of(const Field&) { return {}; }
std::tuple<LearnedGradient> gradient_of(const LearnedField& field) { return {{field.gradient, field.to}}; }
template <class... Field> auto gradients_of(const std::tuple<Field...>& options) {
    return std::apply([](const Field&... field) { return std::tuple_cat(gradient_of(field)...); }, options);
}

// A number, or None to keep the default value of the field.
template <class T> struct OptionalField {
    using Value = std::optional<T>;
    const char* name;
    T Args::* to;
    Value read(nb::handle x) const { return x.is_none() ? Value{} : Value{number_of<T>(name, x)}; }
    template <class J> void put(Call<J>& call, const Value& x) const {
        if (x) call.job.*to = *x;
    }
};
template <class T> OptionalField<T> optional(const char* name, T Args::* to) { return {name, to}; }

// An array of integers, with `each` integers per entry of the batch, or per head of each entry if `per_head`.
struct IntegersField {
    using Value = Integers;
    const char* name;
    const std::int64_t* Args::* to;
    bool per_head;
    std::int64_t each;
    Value read(nb::handle x) const { return Value(name, x); }
    template <class J> void put(Call<J>& call, Value& x) const {
        if (!x) return;
        const std::int64_t count = each * (per_head ? call.heads() : call.job.batch.total);
        if (x.count != count)
            throw nb::value_error((std::string(name) + ": expected " + std::to_string(count) + " integers, got " +
                                   std::to_string(x.count))
                                      .c_str());
        call.job.*to = x.begin();
    }
};

// How the keys are spread over processes (core/processes.py).
struct SpreadField {
    using Value = Processes;
    const char* name;
    Processes read(nb::handle x) const { return Processes(x); }
    template <class J> void put(Call<J>& call, const Processes& x) const {
        if (!x) return;
        Args& args = call.job;
        args.shards = x.shards();
        args.first_key = args.shards.first();
        const nb::handle python(static_cast<PyObject*>(args.shards.processes));
        const auto number = [&](const char* of) { return nb::cast<std::int64_t>(python.attr(of)); };
        args.first_row = number("first_row");
        args.all_queries = number("all_queries");
        args.starts = nb::cast<bool>(python.attr("starts"));
        if constexpr (std::is_same_v<J, GradientArgs>) call.job.key_sums = reinterpret_cast<char*>(number("key_sums"));
        if (args.keys != args.shards.sizes[args.shards.rank])
            throw nb::value_error("spread: expected the number of keys in this process");
    }
};

// A contiguous array with one float64 per query.
template <class B, class T> struct QueriesField {
    using Value = HeldArray;
    const char* name;
    T* B::* to;
    HeldArray read(nb::handle x) const { return HeldArray(x, !std::is_const_v<T>); }
    template <class J> void put(Call<J>& call, HeldArray& x) const {
        call.job.*to = numbers<T>(name, x, call.queries());
    }
};
template <class B> QueriesField<B, double> queries(const char* name, double* B::* to) { return {name, to}; }

// Binds a kernel. The fields in `all` are its Python arguments, of which the first three are queries, keys and values.
// The kernel sets one flag per query. With `flag_keys`, the flags of the keys follow (Args::nonfinite).
template <class J, class Kernel, class... Field>
void bind_heads(nb::module_& module, const char* name, const char* text, Kernel kernel, bool flag_keys,
                const std::tuple<Field...>& all) {
    std::apply([&](const Field&... fields) {
        module.def(name, [=](Handle<Field>... arguments) {
            std::tuple<typename Field::Value...> values{fields.read(arguments)...};
            Call<J> call(values);
            std::apply([&](auto&... value) { (fields.put(call, value), ...); }, values);
            const std::int64_t keys = call.job.batch.total * call.job.groups * call.job.keys;
            return call.run(kernel, call.queries() + (flag_keys ? keys : 0));
        }, nb::arg(fields.name).none()..., text);
        list_arguments(module, name, fields...);
    }, all);
}

// True if q, k and v need no conversion or broadcast. They must be arrays of one library and one floating dtype, with
// equal batch axes, with matching heads, lengths and widths. With `ready`, they must also be tensors whose derivatives
// are not recorded. In Python these checks take 30 us.
bool plain_heads(nb::handle q_, nb::handle k_, nb::handle v_, bool ready) {
    const Described q(q_), k(k_), v(v_);
    if (!q || q.dims() < 3 || !k.alike(q) || !v.alike(q)) return false;
    if (ready && !(q.ready() && k.ready() && v.ready())) return false;
    const std::int32_t width = q.dims() - 1;
    const std::int32_t heads = q.dims() - 3;
    const bool groups = q.size(heads) == k.size(heads) || (k.size(heads) > 0 && q.size(heads) % k.size(heads) == 0);
    return groups && std::equal(k.sizes(), k.sizes() + width, v.sizes()) && q.size(width) == k.size(width) &&
           std::equal(q.sizes(), q.sizes() + heads, k.sizes());
}

}  // namespace

void bind(nb::module_& module) {
    module.def("plain_heads", [](nb::handle q, nb::handle k, nb::handle v) {
        return plain_heads(q, k, v, false);
    }, "q"_a.none(), "k"_a.none(), "v"_a.none(), "True if q, k and v need no conversion, broadcast or further check");
    module.def("heads_at_once",
               [](nb::handle q, nb::handle k, nb::handle v) {
        return plain_heads(q, k, v, true) && Torch::known().still();
    }, "q"_a.none(), "k"_a.none(), "v"_a.none(),
               "True if q, k and v are tensors, `plain_heads` is True, and a kernel may run now, without torch");
    module.attr("KEY_BLOCK") = kKeys;
    const auto qkv =
        std::tuple{input("q", &Args::q, Per::query, Count::width), input("k", &Args::k, Per::key, Count::width),
                   input("v", &Args::v, Per::key, Count::values)};
    const auto pages =
        std::tuple{std::get<0>(qkv), PagesField{"k_pages"}, PagesField{"v_pages"}, TableField{"page_table"}};
    const auto options = std::tuple{LearnedField{"scale", "dscale", &Args::scale, kDouble},
                                    ArrayField<Args>{"mask", &Args::mask, Per::query, Count::keys, false, false, kMask},
                                    broadcastable("bias", &Args::bias, Per::query, Count::keys),
                                    LearnedField{"slopes", "dslopes", &Args::slopes, kReal},
                                    broadcastable("sink", &Args::sink, Per::query, Count::one),
                                    IntegersField{"lengths", &Args::lengths, false, 1},
                                    IntegersField{"seeds", &Args::seeds, true, 2},
                                    optional("left", &Args::left),
                                    optional("right", &Args::right),
                                    optional("softcap", &Args::softcap),
                                    optional("dropout", &Args::dropout),
                                    SpreadField{"spread"}};
    const auto results =
        std::tuple{written("output", &Args::out, Per::query, Count::values), queries("lse", &Args::lse)};
    const auto gradients =
        std::tuple{input("g", &GradientArgs::seed, Per::query, Count::values),
                   QueriesField<GradientArgs, const double>{"g_lse", &GradientArgs::to_lse},
                   written("dq", &GradientArgs::dq, Per::query, Count::width),
                   written("dk", &GradientArgs::dk, Per::key, Count::width),
                   written("dv", &GradientArgs::dv, Per::key, Count::values),
                   ArrayField<GradientArgs>{"dbias", &GradientArgs::dbias, Per::query, Count::keys, false, true, kReal},
                   queries("delta", &GradientArgs::delta)};
    const char* const attend_text =
        "Write attention to output, and the logsumexp to lse. Return one flag per query (1: its result is not finite), "
        "or None if no flag is set";
    bind_heads<Args>(module, "attend", attend_text, run, false, std::tuple_cat(qkv, options, results));
    bind_heads<Args>(module, "attend_paged", attend_text, run, false, std::tuple_cat(pages, options, results));
    bind_heads<GradientArgs>(
        module, "attend_vjp",
        "Write the gradients of attention to dq, dk and dv, and add the gradient of the bias to dbias. For each query, "
        "write delta = <g, output> - g_lse and the gradients of the options with one number per query. Return flags of "
        "the queries (1: left out because a number is not finite, 2: should have been left out), then flags of the "
        "keys (1: a sum overflowed), or None if no flag is set",
        run_gradient, true, std::tuple_cat(qkv, options, results, gradients, gradients_of(options)));
}

}  // namespace softargmax::attend
