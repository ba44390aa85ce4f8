// This room's kernels as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <numeric>

#include "core/native/arguments.hpp"
#include "output/args.hpp"
#include "output/sort.hpp"

using namespace nb::literals;

namespace softargmax::output {
namespace {

template <class T> using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Index = Vector<const std::int64_t>;

template <class A> std::int64_t size_of(const A& array) { return static_cast<std::int64_t>(array.size()); }

[[noreturn]] void refuse(const char* name, const char* why) {
    throw nb::value_error((std::string(name) + ": " + why).c_str());
}

// (count, width) numbers, or (count,) where the width is 1, with the numbers of a vector side by side.
Table table_of(const char* name, const View& x, std::int64_t width) {
    if (x.shape.size() != 2 || x.shape[1] != width || (width > 1 && x.stride[1] != 1))
        refuse(name, "it may be vectors of one length, contiguous");
    return {x.data, x.type, x.stride[0]};
}
template <class T> T* dense(const char* name, const View& x, std::int64_t count, Type type) {
    must_be(name, x, {type});
    if (x.shape.size() != 1 || x.shape[0] != count || (count > 1 && x.stride[0] != 1))
        refuse(name, "it may be as many numbers as there are places, contiguous");
    return reinterpret_cast<T*>(x.data);
}
// Whether all are from 0 to `limit` - 1: of negative ones the largest bit is set.
void in_range(const char* name, const Index& index, std::int64_t limit) {
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < index.size(); ++i) most = std::max(most, static_cast<std::uint64_t>(index.data()[i]));
    if (index.size() && most >= static_cast<std::uint64_t>(limit))
        throw nb::index_error((std::string(name) + ": some are out of range").c_str());
}
int threads_for(std::int64_t work) { return work < kParallel ? 1 : threads_now(); }
constexpr std::initializer_list<Type> kWide = {Type::f32, Type::f64};

// Starts of `count` pieces of so many places, one after the other.
template <class T> void pieces_of(const char* name, const Vector<const T>& starts, std::int64_t count,
                                  std::int64_t places) {
    if (size_of(starts) != count + 1 || starts.data()[0] != 0 || starts.data()[count] != places ||
        !std::is_sorted(starts.data(), starts.data() + count + 1))
        refuse(name, "it may go from 0 up to the number of places, one more than there are pieces");
}

// h and a table of nodes, and a bias of these or none.
template <class J> void two_tables(J& job, const Held& h, const Held& weight, const Held& bias) {
    must_be("h", h, kWide);
    must_be("weight", weight, kReal);
    must_be("bias", bias, kReal);
    if (h.shape.size() != 2) refuse("h", "it may be a matrix");
    job.width = h.shape[1];
    job.h = table_of("h", h, job.width);
    job.weight = table_of("weight", weight, job.width);
    if (!bias) return;
    if (bias.shape.size() != 1 || bias.shape[0] != weight.shape[0]) refuse("bias", "it may be one per node");
    job.bias = {bias.data, bias.type, bias.stride[0]};
}

void pair_dots(nb::handle h_, const Index& rows, nb::handle weight_, nb::handle bias_, const Index& nodes,
               nb::handle out_) {
    const Held h(h_), weight(weight_), bias(bias_), out(out_, true);
    DotsArgs job;
    two_tables(job, h, weight, bias);
    if (rows.size() != nodes.size()) refuse("rows", "one per node");
    job.pairs = size_of(nodes);
    job.out = dense<char>("out", out, job.pairs, h.type);
    in_range("rows", rows, h.shape[0]);
    in_range("nodes", nodes, weight.shape[0]);
    job.rows = rows.data();
    job.nodes = nodes.data();
    job.threads = threads_for(job.pairs * job.width);
    const nb::gil_scoped_release release;
    run_dots(job);
}

void sums_of_rows(nb::handle table_, const Index& index, nb::handle factors_, const Index& starts,
                  const std::optional<Index>& order, nb::handle out_, nb::handle totals_) {
    const Held table(table_), factors(factors_), out(out_, true), totals(totals_, true);
    must_be("table", table, kReal);
    must_be("out", out, kWide);
    if (out.shape.size() != 2) refuse("out", "it may be a matrix");
    SumsArgs job;
    job.width = out.shape[1];
    job.sums = out.shape[0];
    job.places = size_of(index);
    job.table = table_of("table", table, job.width);
    job.out = table_of("out", out, job.width);
    job.factors = dense<char>("factors", factors, job.places, out.type);
    if (totals) job.totals = dense<char>("totals", totals, job.sums, out.type);
    in_range("index", index, table.shape[0]);
    pieces_of("starts", starts, job.sums, job.places);
    if (order) {
        if (order->size() != index.size()) refuse("order", "one per place");
        in_range("order", *order, job.places);
        job.order = order->data();
    }
    job.index = index.data();
    job.starts = starts.data();
    job.threads = threads_for(job.places * job.width);
    const nb::gil_scoped_release release;
    run_sums(job);
}

std::int64_t places_by_row(const Index& index, Vector<std::int64_t> order, Vector<std::int64_t> rows,
                           Vector<std::int64_t> starts) {
    const std::int64_t count = size_of(index);
    if (size_of(order) != count || size_of(rows) != count || size_of(starts) != count + 1 || count >= 1LL << 31)
        refuse("order, rows, starts", "as many as there are places, of the last one more");
    in_range("index", index, 1LL << 31);
    const nb::gil_scoped_release release;
    const std::int64_t most = count ? *std::max_element(index.data(), index.data() + count) : 0;
    return sort_places(index.data(), count, most, order.data(), rows.data(), starts.data());
}

void coins(nb::handle h_, nb::handle weight_, nb::handle bias_, const Index& nodes, const Index& starts,
           const Vector<const std::int8_t>& signs, nb::handle shift_, nb::handle loss_, nb::handle slopes_,
           nb::handle dh_) {
    const Held h(h_), weight(weight_), bias(bias_), shift(shift_), loss(loss_, true), slopes(slopes_, true),
        dh(dh_, true);
    CoinsArgs job;
    two_tables(job, h, weight, bias);
    job.rows = h.shape[0];
    job.pairs = size_of(nodes);
    if (size_of(signs) != job.pairs) refuse("signs", "one per pair");
    pieces_of("starts", starts, job.rows, job.pairs);
    in_range("nodes", nodes, weight.shape[0]);
    job.nodes = nodes.data();
    job.starts = starts.data();
    job.signs = signs.data();
    job.loss = dense<char>("loss", loss, job.rows, h.type);
    if (shift) job.shift = dense<char>("shift", shift, job.pairs, h.type);
    if (slopes) job.slopes = dense<char>("slopes", slopes, job.pairs, h.type);
    if (dh) {
        must_be("dh", dh, {h.type});
        if (dh.shape != h.shape) refuse("dh", "it may be of h's shape");
        job.dh = table_of("dh", dh, job.width);
    }
    job.threads = threads_for(job.pairs * job.width);
    const nb::gil_scoped_release release;
    run_coins(job);
}

bool overlap(const Held& a, const Held& b) {
    const auto end = [](const Held& x) {
        return x.data + x.shape[0] * x.stride[0] * kTypeBytes[static_cast<int>(x.type)];
    };
    return a.data < end(b) && b.data < end(a);
}

using Paths = std::tuple<Index, Vector<const std::int32_t>, Vector<const std::int8_t>>;

double descend(nb::handle vectors_, nb::handle weight_, const Index& inputs, const Index& starts, const Index& target,
               const std::optional<Index>& negatives, const std::optional<Paths>& paths, double rate, double last_rate,
               std::int64_t batch) {
    const Held vectors(vectors_, true), weight(weight_, true);
    must_be("vectors", vectors, kWide);
    must_be("weight", weight, {vectors.type});
    if (vectors.shape.size() != 2) refuse("vectors", "it may be a matrix");
    StepsArgs job;
    job.width = vectors.shape[1];
    job.vectors = table_of("vectors", vectors, job.width);
    job.weight = table_of("weight", weight, job.width);
    if (overlap(vectors, weight)) refuse("weight", "it shares memory with the vectors");
    job.rows = size_of(inputs);
    job.targets = size_of(target);
    job.batch = batch;
    if (batch < 1 || batch >= 1LL << 31 || weight.shape[0] >= 1LL << 31) refuse("batch, weight", "out of range");
    in_range("inputs", inputs, vectors.shape[0]);
    pieces_of("starts", starts, job.rows, job.targets);
    if (paths) {
        const auto& [offsets, nodes, signs] = *paths;
        const std::int64_t classes = size_of(offsets) - 1;
        pieces_of("offsets", offsets, classes, size_of(nodes));
        if (signs.size() != nodes.size()) refuse("signs", "one per node");
        std::uint32_t most = 0;
        for (std::size_t i = 0; i < nodes.size(); ++i)
            most = std::max(most, static_cast<std::uint32_t>(nodes.data()[i]));
        if (nodes.size() && most >= weight.shape[0]) throw nb::index_error("paths: some nodes are out of range");
        in_range("target", target, classes);
        job.offsets = offsets.data();
        job.nodes = nodes.data();
        job.signs = signs.data();
    } else {
        if (!negatives || (job.targets ? size_of(*negatives) % job.targets != 0 : negatives->size() != 0))
            refuse("negatives", "as many for each target, or paths");
        in_range("target", target, weight.shape[0]);
        in_range("negatives", *negatives, weight.shape[0]);
        job.negatives = negatives->data();
        job.samples = job.targets ? size_of(*negatives) / job.targets : 0;
    }
    job.inputs = inputs.data();
    job.starts = starts.data();
    job.target = target.data();
    job.rate = rate;
    job.last_rate = last_rate;
    std::int64_t pairs = job.targets * (1 + job.samples);
    if (job.offsets) {
        const auto length = [&](std::int64_t y) { return job.offsets[y + 1] - job.offsets[y]; };
        pairs = std::transform_reduce(job.target, job.target + job.targets, std::int64_t{0}, std::plus<>(), length);
    }
    job.threads = job.rows ? threads_for(std::min(batch, job.rows) * (pairs / job.rows) * job.width) : 1;
    const nb::gil_scoped_release release;
    run_steps(job);
    return job.loss;
}

void draw(DrawsArgs& job, std::uint64_t seed, std::uint64_t stream, std::uint32_t purpose, std::int64_t first) {
    if (first < 0 || first + job.draws > 1LL << 32) refuse("first", "out of range");
    job.seed = seed;
    job.stream = stream;
    job.purpose = purpose;
    job.first = first;
    job.threads = threads_for(job.draws);
    const nb::gil_scoped_release release;
    run_draws(job);
}
void random_blocks(nb::ndarray<std::int64_t, nb::shape<4, -1>, nb::c_contig, nb::device::cpu> out, std::uint64_t seed,
                   std::uint64_t stream, std::uint32_t purpose, std::int64_t first) {
    DrawsArgs job;
    job.draws = static_cast<std::int64_t>(out.shape(1));
    job.out = out.data();
    draw(job, seed, stream, purpose, first);
}
void alias_draws(const Vector<const double>& threshold, const Index& alias, Vector<std::int64_t> out,
                 std::uint64_t seed, std::uint64_t stream, std::uint32_t purpose, std::int64_t first) {
    DrawsArgs job;
    job.classes = size_of(threshold);
    job.draws = size_of(out);
    if (job.classes < 1 || job.classes >= 1LL << 31 || size_of(alias) != job.classes)
        refuse("threshold, alias", "one per class");
    job.threshold = threshold.data();
    job.alias = alias.data();
    job.out = out.data();
    draw(job, seed, stream, purpose, first);
}

}  // namespace

void bind(nb::module_& module) {
    module.def("pair_dots", &pair_dots, "h"_a, "rows"_a, "weight"_a, "bias"_a.none(), "nodes"_a, "out"_a,
               "<h, w> + b of every pair of a row and a node, into out");
    module.def("sums_of_rows", &sums_of_rows, "table"_a, "index"_a, "factors"_a, "starts"_a, "order"_a.none(), "out"_a,
               "totals"_a.none() = nb::none(),
               "factors times rows of the table, summed from each start to the next, into out; those of factors alone "
               "into totals");
    module.def("places_by_row", &places_by_row, "index"_a, "order"_a, "rows"_a, "starts"_a,
               "places of an index by what stands there; what stands there, each once, and where its places start: how "
               "many there are");
    module.def("coins", &coins, "h"_a, "weight"_a, "bias"_a.none(), "nodes"_a, "starts"_a, "signs"_a, "shift"_a.none(),
               "loss"_a, "slopes"_a.none(), "dh"_a.none(),
               "the losses of rows whose coins fell as the signs say, their slopes and the gradients to h");
    module.def("descend", &descend, "vectors"_a, "weight"_a, "inputs"_a, "starts"_a, "target"_a, "negatives"_a.none(),
               "paths"_a.none(), "rate"_a, "last_rate"_a, "batch"_a,
               "steps of gradient descent on both tables, in place; the sum of the losses");
    module.def("random_blocks", &random_blocks, "out"_a, "seed"_a, "stream"_a, "purpose"_a, "first"_a,
               "the four random words of positions from the first on, into the rows of out");
    module.def("alias_draws", &alias_draws, "threshold"_a, "alias"_a, "out"_a, "seed"_a, "stream"_a, "purpose"_a,
               "first"_a, "draws from an alias table, by the random words of positions from the first on");
}

}  // namespace softargmax::output
