// Attention as libraries and papers compute it. All forms add the maximum's 1 into l (defect H1), and all backwards take
// D = go . o, a separately rounded mean, from every go . v_j (defect H2): the dominating key's component collapses, and the
// gradient of the logits does not sum to zero.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

enum Input : std::size_t { q, k, v, bias, mask, go, glse };
enum Output : std::size_t { o, lse, gq, gk, gv, gbias, gtau };
enum Attribute : std::size_t { tau, softcap, causal, window, sink, lse_base };

constexpr int key_tile = 64;  // of the online forms

/// One query while it is computed.
template <class T>
struct Query {
  Values<T> product, slope;  // q . k_j and the derivative of the cap
  Values<T> a;               // logits, -inf where hidden; the sink's 0 last
  Values<T> p;               // weights that the backward reads
  Values<T> o;
  T lse = 0;
};

/// What every form shares: logits with their masks, and the gradients once p and D are known. Sums run from left to right.
template <class T>
class Attention {
 public:
  explicit Attention(const Row<T>& row)
      : row(row),
        group(extent(axis::heads) / extent(axis::kv_heads)),
        queries(extent(axis::queries)),
        keys(extent(axis::keys)),
        head(extent(axis::head_size)),
        width(extent(axis::value_size)) {}

  /// Form::forward fills p, o and lse of a query; Form::backward_weights replaces p; Form::kept_o and Form::operand round o for D
  /// and the operands of the gradients' products.
  template <class Form>
  void run() const {
    const std::size_t sizes[] = {group * queries * head, keys * head, keys * width, group * queries * keys, group * queries};
    for (std::size_t i = 0; i < std::size(sizes); ++i)
      if (row.out[gq + i]) std::fill_n(row.out[gq + i], sizes[i], T(0));
    const T base = row.attribute[lse_base] != 0 ? T(1.4426950408889634) : T(1);
    Query<T> query;
    for (std::size_t t = 0; t < group * queries; ++t) {
      logits(t, query);
      query.o.assign(width, T(0));
      Form::forward(*this, query);
      if (row.out[o]) std::copy(query.o.begin(), query.o.end(), row.out[o] + t * width);
      if (row.out[lse]) row.out[lse][t] = query.lse * base;
      if (!row.in[go] && !row.in[glse]) continue;
      Form::backward_weights(query);
      gradients<Form>(t, query, row.in[glse] ? row.in[glse][t] * base : T(0));
    }
    for (std::size_t i = 0; row.out[gk] && i < keys * head; ++i) row.out[gk][i] *= static_cast<T>(row.attribute[tau]);
  }

  /// o += p_j v_j for the keys first .. last - 1.
  template <class Weight>
  void add_values(std::size_t first, std::size_t last, Weight weight, Values<T>& to) const {
    for (std::size_t j = first; j < last; ++j)
      for (std::size_t c = 0; c < width; ++c) to[c] += weight(j) * row.in[v][j * width + c];
  }

  const Row<T>& row;
  const std::size_t group, queries, keys, head, width;

 private:
  std::size_t extent(std::size_t axis) const { return static_cast<std::size_t>(row.extents[axis]); }

  bool visible(std::size_t t, std::size_t j) const {
    const auto signed_of = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    const bool order = row.attribute[causal] != 0, limited = row.attribute[window] > 0;
    const std::int64_t behind = signed_of(t % queries) + (row.attribute[causal] == 2 ? signed_of(keys) - signed_of(queries) : 0) - signed_of(j);
    if ((order || limited) && behind < 0) return false;
    if (limited && static_cast<double>(behind) >= row.attribute[window]) return false;
    return !row.in[mask] || row.in[mask][t * keys + j] != 0;
  }

  void logits(std::size_t t, Query<T>& query) const {
    const T scale = static_cast<T>(row.attribute[tau]), cap = static_cast<T>(row.attribute[softcap]);
    query.product.resize(keys);
    query.slope.assign(keys, T(1));
    query.a.assign(keys, -std::numeric_limits<T>::infinity());
    for (std::size_t j = 0; j < keys; ++j) {
      query.product[j] = sequential_sum<T>(head, [&](std::size_t c) { return row.in[q][t * head + c] * row.in[k][j * head + c]; });
      const T added = row.in[bias] ? row.in[bias][t * keys + j] : T(0);
      if (!visible(t, j) || std::isinf(added)) continue;
      query.a[j] = scale * query.product[j] + added;
      if (cap == 0) continue;
      const T tangent = std::tanh(query.a[j] / cap);
      query.a[j] = cap * tangent;
      query.slope[j] = 1 - tangent * tangent;
    }
    if (row.attribute[sink] != 0) query.a.push_back(T(0));
  }

  template <class Form>
  void gradients(std::size_t t, const Query<T>& query, T upstream) const {
    const T* g = row.in[go] ? row.in[go] + t * width : nullptr;
    const auto pull = [&](auto value) { return g ? sequential_sum<T>(width, [&](std::size_t c) { return g[c] * value(c); }) : T(0); };
    const T mean = pull([&](std::size_t c) { return Form::kept_o(row.storage, query.o[c]); });
    for (std::size_t j = 0; j < keys; ++j) {
      const T da = query.p[j] * (pull([&](std::size_t c) { return row.in[v][j * width + c]; }) - mean + upstream) * query.slope[j];
      const T operand = Form::operand(row.storage, da), weight = Form::operand(row.storage, query.p[j]);
      if (row.out[gbias]) row.out[gbias][t * keys + j] = da;
      if (row.out[gtau]) row.out[gtau][t] += da * query.product[j];
      for (std::size_t c = 0; row.out[gv] && g && c < width; ++c) row.out[gv][j * width + c] += weight * g[c];
      for (std::size_t c = 0; row.out[gq] && c < head; ++c) row.out[gq][t * head + c] += operand * row.in[k][j * head + c];
      for (std::size_t c = 0; row.out[gk] && c < head; ++c) row.out[gk][j * head + c] += operand * row.in[q][t * head + c];
    }
    for (std::size_t c = 0; row.out[gq] && c < head; ++c) row.out[gq][t * head + c] *= static_cast<T>(row.attribute[tau]);
  }
};

/// Nothing is rounded between forward and backward.
struct Unrounded {
  template <class T>
  static void backward_weights(Query<T>&) {}
  template <class T>
  static T kept_o(Format, T value) {
    return value;
  }
  template <class T>
  static T operand(Format, T value) {
    return value;
  }
};

/// The maximum, or 0 where nothing is visible: -inf - (-inf) is no number.
template <class T>
T finite_maximum(const T* values, std::size_t n) {
  const T m = maximum(values, n);
  return m == -std::numeric_limits<T>::infinity() ? T(0) : m;
}

/// p_j /= l, the sum of all; returns l.
template <class T>
T normalise(Values<T>& p) {
  const T l = sequential_sum<T>(p.size(), [&](std::size_t j) { return p[j]; });
  for (T& entry : p) entry = l == 0 ? T(0) : entry / l;
  return l;
}

/// p = exp(a - m) / l and LSE = m + log l.
template <class T>
void softmax_of(Query<T>& query, T m) {
  query.p.resize(query.a.size());
  for (std::size_t j = 0; j < query.p.size(); ++j) query.p[j] = std::exp(query.a[j] - m);
  query.lse = m + std::log(normalise(query.p));
}

/// Scores, softmax and the product with V in full; D from the unrounded o. A query without a visible key is NaN everywhere
/// (-inf - (-inf)), gk and gv included. f32, f64; narrower storage in f32 arithmetic. Deterministic.
struct TwoPass : Unrounded {
  template <class T>
  static void forward(const Attention<T>& attention, Query<T>& query) {
    softmax_of(query, maximum(query.a.data(), query.a.size()));
    attention.add_values(0, attention.keys, [&](std::size_t j) { return query.p[j]; }, query.o);
  }
};

/// The published kernels' form (FlashAttention-2, arXiv:2307.08691; PyTorch's CPU kernel has it too): online softmax that keeps
/// (m, l), hands out LSE = m + log l and recomputes p = exp(a - LSE) from that rounded number, so every gradient of a query is
/// scaled by 1 + u |LSE|. D = go . o reads the o of the storage format: in bf16 the sum of da is off by up to 2^-8 |go . o|.
/// exp(a - m), p and da are rounded to the storage format before they are multiplied with V, go, K and Q, while l sums them
/// unrounded: constant values do not come out constant. A query without a visible key gives zeros and -inf. f32, f64;
/// narrower storage in f32 arithmetic. Deterministic.
struct Flash {
  template <class T>
  static void forward(const Attention<T>& attention, Query<T>& query) {
    const bool sink = query.a.size() > attention.keys;
    T m = sink ? T(0) : -std::numeric_limits<T>::infinity(), l = sink ? 1 : 0;
    Values<T> e(attention.keys);
    for (std::size_t first = 0; first < attention.keys; first += key_tile) {
      const std::size_t last = std::min(first + key_tile, attention.keys);
      const T raised = std::max(m, maximum(query.a.data() + first, last - first)), shift = std::isinf(raised) ? T(0) : raised;
      const T scale = std::exp(m - shift);
      l *= scale;
      for (T& value : query.o) value *= scale;
      for (std::size_t j = first; j < last; ++j) l += e[j] = std::exp(query.a[j] - shift);
      attention.add_values(first, last, [&](std::size_t j) { return stored(attention.row.storage, e[j]); }, query.o);
      m = raised;
    }
    for (T& value : query.o) value = l == 0 ? T(0) : value / l;
    query.lse = m + std::log(l);
  }
  template <class T>
  static void backward_weights(Query<T>& query) {
    query.p.resize(query.a.size());
    for (std::size_t j = 0; j < query.p.size(); ++j) query.p[j] = std::isinf(query.lse) ? T(0) : std::exp(query.a[j] - query.lse);
  }
  template <class T>
  static T kept_o(Format storage, T value) {
    return stored(storage, value);
  }
  template <class T>
  static T operand(Format storage, T value) {
    return stored(storage, value);
  }
};

/// P rounded to the storage format for all its products, while l was summed unrounded: with constant values o is off by
/// up to u of the storage (2^-8 in bf16, 2^-4 in e4m3) times their size. A query
/// without a visible key gives zeros and -inf. The rest as two_pass.
struct PRounded : Unrounded {
  template <class T>
  static void forward(const Attention<T>& attention, Query<T>& query) {
    softmax_of(query, finite_maximum(query.a.data(), query.a.size()));
    for (T& p : query.p) p = stored(attention.row.storage, p);
    attention.add_values(0, attention.keys, [&](std::size_t j) { return query.p[j]; }, query.o);
  }
};

/// Logits times log2(e), 2^x instead of e^x: the product rounds, an absolute error of 2 u |a| in every logit. LSE is converted
/// back from base 2. Empty queries as p_rounded, the rest as two_pass.
struct BaseTwo : Unrounded {
  template <class T>
  static void forward(const Attention<T>& attention, Query<T>& query) {
    const std::size_t n = query.a.size();
    query.p.resize(n);
    for (std::size_t j = 0; j < n; ++j) query.p[j] = query.a[j] * T(1.4426950408889634);
    const T m = finite_maximum(query.p.data(), n);
    for (T& p : query.p) p = std::exp2(p - m);
    query.lse = (m + std::log2(normalise(query.p))) * T(0.6931471805599453);
    attention.add_values(0, attention.keys, [&](std::size_t j) { return query.p[j]; }, query.o);
  }
};

template <class Form, class T>
void attention(const Row<T>& row) {
  Attention<T>(row).template run<Form>();
}

template <class T>
Contract attention_contract(bool online, bool rounds) {
  Contract claim = contract<T>(sequential_tree());
  claim.expm1_error = 2;  // stands for tanh
  claim.key_tile = online ? key_tile : 0;
  claim.stores_intermediates = rounds;
  return claim;
}

template <class Form>
RowKernel form(std::string name, std::string summary, bool online, bool rounds, std::vector<std::string> aliases = {}) {
  return {.op = "sdpa",
          .name = std::move(name),
          .summary = std::move(summary),
          .f32 = attention<Form, float>,
          .f64 = attention<Form, double>,
          .contract_f32 = attention_contract<float>(online, rounds),
          .contract_f64 = attention_contract<double>(online, rounds),
          .aliases = std::move(aliases)};
}

const Registered two_pass{form<TwoPass>("textbook.two_pass", "scores and softmax in full; D = go.o from the unrounded o", false, false)};
/// The alias: at::native's FlashAttentionKernel.cpp, PyTorch 2, with its roundings; its key blocks are 512 wide.
const Registered flash{form<Flash>("textbook.flash", "online softmax, p from the rounded LSE, D from the stored o, P and dS in the storage format", true, true, {"textbook.pytorch"})};
const Registered p_rounded{form<PRounded>("textbook.p_rounded", "P rounded to the storage format, its sum not", false, true)};
const Registered base2{form<BaseTwo>("textbook.base2", "logits times log2(e), powers of 2, LSE converted", false, false)};

}  // namespace
}  // namespace sumzero::textbook
