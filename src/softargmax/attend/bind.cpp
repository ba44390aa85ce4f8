// This room's kernels as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "core/native/arguments.hpp"

using namespace nb::literals;

namespace softargmax {
namespace {

using Sizes = std::vector<std::int64_t>;
using Lengths = std::optional<nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

using Seeds = std::optional<nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;
using Flags = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = std::optional<nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>>;

// The arrays of a call, checked, and the job that is made of them. With a `table` of pages k and v are (pages, page
// size, heads, width).
template <class J> struct AttendCall {
    J job;
    Held q, k, v, out, lse, scale, mask, bias, sink;
    Sizes batch;

    AttendCall(nb::handle q_, nb::handle k_, nb::handle v_, nb::handle out_, nb::handle lse_, bool writes,
               nb::handle scale_, nb::handle mask_, nb::handle bias_, nb::handle sink_, const Lengths& lengths,
               const Table& table, const Seeds& seeds, std::int64_t left, std::int64_t right, double softcap,
               double dropout)
        : q(q_),
          k(k_),
          v(v_),
          out(out_, writes),
          lse(lse_, writes),
          scale(scale_),
          mask(mask_),
          bias(bias_),
          sink(sink_) {
        must_be("q", q, kReal);
        must_be("k", k, {q.type});
        must_be("v", v, {q.type});
        must_be("out", out, kReal);
        must_be("scale", scale, {Type::f64});
        must_be("mask", mask, {Type::boolean});
        must_be("bias", bias, kReal);
        sizes(static_cast<bool>(table));
        add("q", job.q, q, q.shape);
        if (table) {
            take(*table);
            add_pages(job.k, k);
            add_pages(job.v, v);
        } else {
            add("k", job.k, k, of_keys(job.width));
            add("v", job.v, v, of_keys(job.values));
        }
        add("out", job.out, out, of_queries(job.values));
        add("scale", job.scale, scale, of_queries(1));
        add("mask", job.mask, mask, of_queries(job.keys));
        add("bias", job.bias, bias, of_queries(job.keys));
        job.lse = numbers<double>("lse", lse, queries());
        job.sink = numbers<const double>("sink", sink, job.heads);
        if (!job.scale || !job.out || !job.lse) throw nb::value_error("scale, out, lse: there have to be some");
        if (lengths) take(*lengths);
        if (table) look_up();
        if (seeds) {
            if (static_cast<std::int64_t>(seeds->size()) != job.batch.total * job.heads)
                throw nb::value_error("seeds: one per entry and head");
            job.seeds = seeds->data();
        }
        job.dropout = job.seeds ? dropout : 0;
        job.left = left;
        job.right = right;
        job.softcap = softcap;
        const std::int64_t work =
            queries() * std::max<std::int64_t>(job.keys, 1) * std::max<std::int64_t>(job.width, 1);
        job.threads = work < kParallel ? 1 : threads_now();
    }
    std::int64_t queries() const { return job.batch.total * job.heads * job.queries; }
    Sizes of_queries(std::int64_t cols) const { return of(job.heads, job.queries, cols); }
    Sizes of_keys(std::int64_t cols) const { return of(job.groups, job.keys, cols); }

    // An operand of shape (batch..., heads, rows, cols).
    static void add(const char* name, Operand& to, const View& x, const Sizes& shape) {
        if (!x) return;
        if (x.shape != shape)
            throw nb::value_error((std::string(name) + ": its shape does not fit q, k and v").c_str());
        to.data = x.data;
        to.type = x.type;
        const bool batched = x.shape.size() > 3;
        to.row[0] = 0;
        std::copy(x.stride.begin(), x.stride.end() - 1, to.row + (batched ? 0 : 1));
        to.col[0] = x.stride.back();
    }
    void flags(const Flags& strange, std::int64_t count) {
        if (static_cast<std::int64_t>(strange.size()) != count) throw nb::value_error("strange: of another size");
        job.strange = strange.data();
    }
    template <class Kernel> bool run(Kernel kernel) {
        if (queries() == 0) return true;
        const nb::gil_scoped_release release;
        kernel(job);
        return !job.any_strange;
    }

  private:
    void sizes(bool paged) {
        const std::size_t dims = q.shape.size(), heads = paged ? 2 : dims - 3, rows = paged ? 1 : dims - 2;
        if (dims < 3 || dims > kMaxDims - 1 || k.shape.size() != (paged ? 4 : dims) || v.shape.size() != k.shape.size())
            throw nb::value_error("q, k, v: (batch..., heads, length, width)");
        batch.assign(q.shape.begin(), q.shape.end() - 3);
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
            throw nb::value_error("k: heads that do not divide q's");
    }
    Sizes of(std::int64_t heads, std::int64_t rows, std::int64_t cols) const {
        Sizes all = batch;
        all.insert(all.end(), {heads, rows, cols});
        return all;
    }
    void take(const nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& lengths) {
        if (static_cast<std::int64_t>(lengths.size()) != job.batch.total)
            throw nb::value_error("lengths: one per entry of the batch");
        job.lengths = lengths.data();
        for (std::int64_t i = 0; i < job.batch.total; ++i)
            if (job.lengths[i] < 0 || job.lengths[i] > job.keys)
                throw nb::value_error("key_lengths: some are out of range; each may be from 0 to the number of keys");
    }

    // ---- pages --------------------------------------------------------------------------------------------------

    void take(const nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& table) {
        if (static_cast<std::int64_t>(table.shape(0)) != job.batch.total || batch.size() != 1)
            throw nb::value_error("table: a row per entry of the batch");
        if (v.shape[0] != k.shape[0] || v.shape[1] != k.shape[1] || v.shape[2] != k.shape[2] || k.shape[3] != job.width)
            throw nb::value_error("k, v: (pages, page size, heads, width), alike");
        job.table = table.data();
        job.pages = static_cast<std::int64_t>(table.shape(1));
        job.page = k.shape[1];
        job.keys = job.pages * job.page;
    }
    static void add_pages(Operand& to, const View& x) {
        to.data = x.data;
        to.type = x.type;
        to.row[0] = x.stride[0];
        to.row[1] = x.stride[2];
        to.row[2] = x.stride[1];
        to.col[0] = x.stride[3];
    }
    // Whether the pages that lengths reach are there.
    void look_up() const {
        for (std::int64_t e = 0; e < job.batch.total; ++e) {
            const std::int64_t keys = job.lengths ? job.lengths[e] : job.keys;
            for (std::int64_t i = 0; i * job.page < keys; ++i) {
                const std::int64_t page = job.table[e * job.pages + i];
                if (page < 0 || page >= k.shape[0])
                    throw nb::index_error(("page_table: " + std::to_string(page) + " in row " + std::to_string(e) +
                                           "; it may be from 0 to " + std::to_string(k.shape[0] - 1))
                                              .c_str());
            }
        }
    }
};

bool attend(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, Flags strange, nb::handle scale,
            nb::handle mask, nb::handle bias, nb::handle sink, const Lengths& lengths, const Table& table,
            const Seeds& seeds, std::int64_t left, std::int64_t right, double softcap, double dropout) {
    AttendCall<AttendJob> call(q, k, v, out, lse, true, scale, mask, bias, sink, lengths, table, seeds, left, right,
                               softcap, dropout);
    call.flags(strange, call.queries());
    return call.run(chosen_isa().run_attend);
}

bool attend_gradient(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle seed_,
                     nb::handle to_lse_, nb::handle dq_, nb::handle dk_, nb::handle dv_, nb::handle delta_,
                     nb::handle dscale_, nb::handle dbias_, Flags strange, nb::handle scale, nb::handle mask,
                     nb::handle bias, const Lengths& lengths, const Seeds& seeds, std::int64_t left, std::int64_t right,
                     double softcap, double dropout) {
    AttendCall<AttendGradientJob> call(q, k, v, out, lse, false, scale, mask, bias, nb::none(), lengths, {}, seeds,
                                       left, right, softcap, dropout);
    const Held seed(seed_), to_lse(to_lse_), dq(dq_, true), dk(dk_, true), dv(dv_, true), delta(delta_, true),
        dscale(dscale_, true), dbias(dbias_, true);
    AttendGradientJob& job = call.job;
    for (const auto& [name, x] : {std::pair{"seed", &seed}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}})
        must_be(name, *x, kReal);
    call.add("seed", job.seed, seed, call.of_queries(job.values));
    call.add("dq", job.dq, dq, call.of_queries(job.width));
    call.add("dk", job.dk, dk, call.of_keys(job.width));
    call.add("dv", job.dv, dv, call.of_keys(job.values));
    must_be("dbias", dbias, {call.q.type == Type::f64 ? Type::f64 : Type::f32});
    call.add("dbias", job.dbias, dbias, call.of_queries(job.keys));
    job.to_lse = numbers<const double>("to_lse", to_lse, call.queries());
    job.delta = numbers<double>("delta", delta, call.queries());
    job.dscale = numbers<double>("dscale", dscale, call.queries());
    if (!job.seed || !job.dq || !job.dk || !job.dv || !job.delta)
        throw nb::value_error("seed, dq, dk, dv, delta: there have to be some");
    call.flags(strange, job.batch.total * job.groups);
    return call.run(chosen_isa().run_attend_gradient);
}

}  // namespace

void bind_attend(nb::module_& module) {
    module.def(
        "attend", &attend, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "strange"_a, nb::kw_only(), "scale"_a,
        "mask"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "sink"_a.none() = nb::none(),
        "lengths"_a.none() = nb::none(), "table"_a.none() = nb::none(), "seeds"_a.none() = nb::none(), "left"_a = -1,
        "right"_a = -1, "softcap"_a = 0.0, "dropout"_a = 0.0,
        "attention into out, and lse; false where a number was not finite: a query that is `strange` has no result");
    module.def("attend_gradient", &attend_gradient, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "seed"_a, "to_lse"_a.none(),
               "dq"_a, "dk"_a, "dv"_a, "delta"_a, "dscale"_a.none(), "dbias"_a.none(), "strange"_a, nb::kw_only(),
               "scale"_a, "mask"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "lengths"_a.none() = nb::none(),
               "seeds"_a.none() = nb::none(), "left"_a = -1, "right"_a = -1, "softcap"_a = 0.0, "dropout"_a = 0.0,
               "its gradients into dq, dk, dv, added to dbias; of every query <seed, out> - to_lse and the gradient to "
               "its scale; false where a number was not finite: a head of keys that is `strange` has none");
}

}  // namespace softargmax
