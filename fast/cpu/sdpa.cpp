// Scaled dot-product attention, forward and backward of all heads that share one key-value head.
//
// Queries are taken kQueries at a time and keys kKeys at a time. The forward keeps (m, r) of every query, r the sum of e^(a - m)
// without the pivot, the first key of the largest logit, and rescales only when m grows. A backward follows each block of
// queries while its logits and go . v are at hand: p = e^(a - m) / (1 + r), never through a rounded log-sum-exp. go . v enters
// as the difference to that of the pivot, so D never rounds to the pivot's own term and the sum of da loses no more than its
// terms.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/sdpa.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/multiply-inl.h"
#include "reference/operator.hpp"

#ifndef SUMZERO_FAST_CPU_SDPA_ONCE
#define SUMZERO_FAST_CPU_SDPA_ONCE
namespace sumzero::fast {
inline constexpr std::size_t kQueries = 48, kKeys = 64;
namespace attention {
enum Input : std::size_t { q, k, v, bias, mask, go, glse };
enum Output : std::size_t { o, lse, gq, gk, gv, gbias, gtau };
enum Attribute : std::size_t { tau, softcap, causal, window, sink, lse_base, empty_row_policy };
}  // namespace attention
}  // namespace sumzero::fast
#endif

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace in = attention;

/// One problem in arithmetic E on elements of type T.
template <class E, class T>
class Attention {
 public:
  explicit Attention(const Row<T>& row)
      : row_(row),
        group_(Extent(axis::heads) / Extent(axis::kv_heads)),
        queries_(Extent(axis::queries)),
        keys_(Extent(axis::keys)),
        head_(Extent(axis::head_size)),
        width_(Extent(axis::value_size)),
        tau_(static_cast<E>(row.attribute[in::tau])),
        cap_(std::max(static_cast<E>(row.attribute[in::softcap]), row.attribute[in::softcap] > 0 ? std::numeric_limits<E>::min() : E(0))),
        base_(row.attribute[in::lse_base] != 0 ? E(1.4426950408889634) : E(1)),
        shift_(row.attribute[in::causal] == 2 ? static_cast<std::int64_t>(keys_) - static_cast<std::int64_t>(queries_) : 0),
        ordered_(row.attribute[in::causal] != 0 || row.attribute[in::window] > 0),
        // A key is seen from fewer than `window` behind.
        reach_(row.attribute[in::window] > 0 ? static_cast<std::int64_t>(std::ceil(row.attribute[in::window])) : std::int64_t{1} << 62),
        backward_((row.in[in::go] || row.in[in::glse]) && (row.out[in::gq] || row.out[in::gk] || row.out[in::gv] || row.out[in::gbias] || row.out[in::gtau])) {}

  void Run() {
    const size_t gradient_sizes[] = {group_ * queries_ * head_, keys_ * head_, keys_ * width_, group_ * queries_ * keys_, group_ * queries_};
    for (size_t i = 0; i < std::size(gradient_sizes); ++i) Fill(row_.out[in::gq + i], gradient_sizes[i], 0);
    PackKeys();
    for (size_t head = 0; head < group_; ++head)
      for (size_t first = 0; first < queries_; first += kQueries) RunBlock(head, first, std::min(kQueries, queries_ - first));
    if (!backward_) return;
    Unpack(gk_, keys_, head_, head_step_, tau_, row_.out[in::gk]);
    Unpack(gv_, keys_, width_, width_step_, E(1), row_.out[in::gv]);
  }

 private:
  static constexpr hn::ScalableTag<E> d{};
  static constexpr size_t N = hn::MaxLanes(hn::ScalableTag<E>());
  using V = hn::Vec<hn::ScalableTag<E>>;
  /// Sums over the keys run in kWidth logical lanes and are folded once a query, so their tree is the same on every target.
  static constexpr size_t kSumLanes = kWidth<E>;
  static_assert(kKeys % kSumLanes == 0);

  enum Slot : int { kKeysTransposed = 32, kValues, kValuesTransposed, kKeyRows, kGradientKeys, kGradientValues, kQueryRows, kUpstream, kResult, kGradientQueries, kLogits, kPulls, kSlopes, kWeights, kAdjoints };
  template <Slot slot>
  static E* Take(size_t n) {
    return scratch<E, slot>(n);
  }
  size_t Extent(size_t axis) const { return static_cast<size_t>(row_.extents[axis]); }

  /// Keys that a query sees by its position: [first, last).
  struct Range {
    size_t first, last;
  };
  Range Seen(size_t query) const {
    if (!ordered_) return {0, keys_};
    const std::int64_t position = static_cast<std::int64_t>(query) + shift_, keys = static_cast<std::int64_t>(keys_);
    const std::int64_t last = std::clamp<std::int64_t>(position + 1, 0, keys), first = std::clamp<std::int64_t>(position - reach_ + 1, 0, last);
    return {static_cast<size_t>(first), static_cast<size_t>(last)};
  }

  /// Rows of n elements into padded rows; the padding is zero.
  static void Pack(const T* from, size_t rows, size_t n, size_t step, E* to) {
    for (size_t i = 0; i < rows; ++i, to += step) {
      for (size_t c = 0; c < n; ++c) to[c] = static_cast<E>(from[i * n + c]);
      std::fill(to + n, to + step, E(0));
    }
  }
  /// Tiles of kKeys rows, each transposed to [n, kKeys]; missing rows are zero.
  static void PackTransposed(const T* from, size_t rows, size_t n, E* to) {
    for (size_t first = 0; first < rows; first += kKeys, to += n * kKeys) {
      const size_t count = std::min(kKeys, rows - first);
      for (size_t c = 0; c < n; ++c) {
        for (size_t j = 0; j < count; ++j) to[c * kKeys + j] = static_cast<E>(from[(first + j) * n + c]);
        std::fill(to + c * kKeys + count, to + (c + 1) * kKeys, E(0));
      }
    }
  }
  static void Unpack(const E* from, size_t rows, size_t n, size_t step, E factor, T* to) {
    if (!to) return;
    for (size_t i = 0; i < rows; ++i)
      for (size_t c = 0; c < n; ++c) to[i * n + c] = static_cast<T>(factor * from[i * step + c]);
  }

  void PackKeys() {
    const size_t padded = (keys_ + kKeys - 1) / kKeys * kKeys;
    keys_transposed_ = Take<kKeysTransposed>(padded * head_);
    PackTransposed(row_.in[in::k], keys_, head_, keys_transposed_);
    values_ = Take<kValues>(padded * width_step_);
    Pack(row_.in[in::v], keys_, width_, width_step_, values_);
    std::fill(values_ + keys_ * width_step_, values_ + padded * width_step_, E(0));
    query_rows_ = Take<kQueryRows>(kQueries * head_step_);
    result_ = Take<kResult>(kQueries * width_step_);
    logits_ = Take<kLogits>(kQueries * (backward_ ? padded : kKeys));
    weights_ = Take<kWeights>(kQueries * kKeys);
    if (!backward_) return;
    if (row_.in[in::go]) {
      values_transposed_ = Take<kValuesTransposed>(padded * width_);
      PackTransposed(row_.in[in::v], keys_, width_, values_transposed_);
    }
    key_rows_ = Take<kKeyRows>(padded * head_step_);
    Pack(row_.in[in::k], keys_, head_, head_step_, key_rows_);
    std::fill(key_rows_ + keys_ * head_step_, key_rows_ + padded * head_step_, E(0));
    gk_ = Take<kGradientKeys>(padded * head_step_);
    std::fill_n(gk_, padded * head_step_, E(0));
    gv_ = Take<kGradientValues>(padded * width_step_);
    std::fill_n(gv_, padded * width_step_, E(0));
    upstream_ = Take<kUpstream>(kQueries * width_step_);
    gq_ = Take<kGradientQueries>(kQueries * head_step_);
    pulls_ = Take<kPulls>(kQueries * padded);
    if (cap_ > 0) slopes_ = Take<kSlopes>(kQueries * padded);
    adjoints_ = Take<kAdjoints>(kQueries * kKeys);
  }

  /// Queries first .. first + count - 1 of a head.
  void RunBlock(size_t head, size_t first, size_t count) {
    const size_t query = head * queries_ + first;  // in the group
    Pack(row_.in[in::q] + query * head_, count, head_, head_step_, query_rows_);
    if (backward_ && row_.in[in::go]) Pack(row_.in[in::go] + query * width_, count, width_, width_step_, upstream_);
    std::fill_n(result_, count * width_step_, E(0));
    for (size_t i = 0; i < count; ++i) {
      State& state = states_[i];
      state.seen = Seen(first + i);
      // The sink is a logit 0 without a value.
      const bool sink = row_.attribute[in::sink] != 0;
      state.maximum = sink ? E(0) : -kInfinity<E>;
      state.pivot = nullptr;
      std::fill_n(state.tail, kSumLanes, E(0));
    }
    // Positions grow with the query, and so do both ends of what it sees.
    const size_t begin = states_[0].seen.first / kKeys, end = (states_[count - 1].seen.last + kKeys - 1) / kKeys;
    for (size_t tile = begin; tile < end; ++tile) Forward(query, count, tile);
    Finish(query, count);
    if (!backward_) return;
    for (size_t i = 0; i < count; ++i) StartBackward(query, i, begin, end);
    std::fill_n(gq_, count * head_step_, E(0));
    for (size_t tile = begin; tile < end; ++tile) Backward(query, count, tile);
    FinishGradients(query, count);
  }

  struct State {
    Range seen;
    E maximum;       // m, -inf before the first visible key
    const E* pivot;  // its go . v while a backward needs it; null for the sink and before the first visible key
    E inverse;       // 1 / (1 + r), or 0
    E mean;          // D less the pivot's go . v
    E upstream;      // cotangent of the natural log-sum-exp
    alignas(64) E tail[kSumLanes];  // r
  };

  // Blocks [count, kKeys] of a tile; only a backward keeps them all.
  E* Kept(E* all, size_t tile) const { return backward_ ? all + tile * kQueries * kKeys : all; }

  void Forward(size_t query, size_t count, size_t tile) {
    E* logits = Kept(logits_, tile);
    Multiply<Start::zero, E>(count, kKeys, head_, {query_rows_, head_step_, 1}, {keys_transposed_ + tile * head_ * kKeys, kKeys}, {logits, kKeys});
    if (backward_) {
      E* pulls = Kept(pulls_, tile);
      if (row_.in[in::go]) Multiply<Start::zero, E>(count, kKeys, width_, {upstream_, width_step_, 1}, {values_transposed_ + tile * width_ * kKeys, kKeys}, {pulls, kKeys});
      else std::fill_n(pulls, count * kKeys, E(0));
    }
    for (size_t i = 0; i < count; ++i) {
      State& state = states_[i];
      E* a = logits + i * kKeys;
      const E largest = FinishLogits(query + i, tile, state.seen, a, cap_ > 0 && backward_ ? Kept(slopes_, tile) + i * kKeys : nullptr);
      if (!(largest > state.maximum)) {
        Weigh(state, a, weights_ + i * kKeys);
        continue;
      }
      Raise(state, largest, result_ + i * width_step_);
      const size_t pivot = FirstEqual(a, 0, kKeys, largest);
      if (backward_) state.pivot = Kept(pulls_, tile) + i * kKeys + pivot;
      // Hidden during the sum, so that its 1 is not in r.
      a[pivot] = -kInfinity<E>;
      Weigh(state, a, weights_ + i * kKeys);
      a[pivot] = largest;
      weights_[i * kKeys + pivot] = 1;
    }
    Multiply<Start::current, E>(count, width_, kKeys, {weights_, kKeys, 1}, {values_ + tile * kKeys * width_step_, width_step_}, {result_, width_step_});
  }

  /// Products q . k to logits, -inf where the query does not see the key; returns the largest.
  E FinishLogits(size_t query, size_t tile, Range seen, E* a, E* slopes) const {
    const size_t start = tile * kKeys;
    const size_t first = std::clamp(seen.first, start, start + kKeys) - start, last = std::clamp(seen.last, start, start + kKeys) - start;
    const V scale = hn::Set(d, tau_);
    V largest = hn::Set(d, -kInfinity<E>);
    if (first == 0 && last == kKeys && !row_.in[in::bias] && !row_.in[in::mask] && cap_ == 0) {
      for (size_t j = 0; j < kKeys; j += N) {
        const V logit = hn::Mul(scale, hn::Load(d, a + j));
        hn::Store(logit, d, a + j);
        largest = MaxOrSecond(logit, largest);
      }
    } else {
      const V hidden = hn::Set(d, -kInfinity<E>);
      const size_t scores = query * keys_ + start;
      for (size_t j = 0; j < kKeys; j += N) {
        V logit = hn::Mul(scale, hn::Load(d, a + j));
        const V index = hn::Add(hn::Load(d, kIndices<E>), hn::Set(d, static_cast<E>(j)));
        auto visible = hn::And(hn::Ge(index, hn::Set(d, static_cast<E>(first))), hn::Lt(index, hn::Set(d, static_cast<E>(last))));
        if (row_.in[in::mask]) visible = hn::And(visible, hn::Ne(LoadScores(row_.in[in::mask] + scores, start, j), hn::Zero(d)));
        if (row_.in[in::bias]) {
          const V bias = LoadScores(row_.in[in::bias] + scores, start, j);
          visible = hn::And(visible, hn::Ne(bias, hidden));
          logit = hn::Add(logit, bias);
        }
        if (cap_ > 0) logit = Cap(logit, slopes ? slopes + j : nullptr);
        logit = hn::IfThenElse(visible, logit, hidden);
        hn::Store(logit, d, a + j);
        largest = MaxOrSecond(logit, largest);
      }
    }
    return hn::GetLane(hn::MaxOfLanes(d, largest));
  }
  /// Entries start + j .. of a row of keys_ entries whose entry `start` is at `from`.
  V LoadScores(const T* from, size_t start, size_t j) const {
    const size_t left = keys_ - start;
    if (j + N <= left) return Load(Whole(), d, from + j, T(0));
    if (j < left) return Load(Partial{left - j}, d, from + j, T(0));
    return hn::Zero(d);
  }

  /// c tanh(a / c) by expm1 of a negative number; the slope 1 - tanh^2 without its cancellation.
  V Cap(V a, E* slope) const {
    const V cap = hn::Set(d, cap_), two = hn::Set(d, E(2));
    const V twice = hn::Mul(hn::Set(d, E(-2)), hn::Abs(hn::Div(a, cap)));
    const V z = ExpM1(d, twice), below = hn::Add(two, z);
    if (slope) hn::Store(hn::Div(hn::Mul(hn::Set(d, E(4)), ExpNonPositive(d, twice)), hn::Mul(below, below)), d, slope);
    return hn::CopySign(hn::Mul(cap, hn::Div(z, below)), a);
  }

  /// A larger maximum: what has been summed is rescaled, and the old pivot joins the tail.
  void Raise(State& state, E largest, E* result) const {
    const E factor = ExpOf(state.maximum - largest);
    const auto scale = [&](E* values, size_t n) HWY_ATTR {
      for (size_t i = 0; i < n; i += N) hn::Store(hn::Mul(hn::Set(d, factor), hn::Load(d, values + i)), d, values + i);
    };
    scale(state.tail, kSumLanes);
    state.tail[0] += factor;
    scale(result, width_step_);
    state.maximum = largest;
  }

  /// Weights e^(a - m) of a tile and their sums.
  void Weigh(State& state, const E* a, E* weights) const {
    const V shift = hn::Set(d, Shift(state));
    for (size_t j = 0; j < kKeys; j += N) hn::Store(ExpNonPositive(d, hn::Sub(hn::Load(d, a + j), shift)), d, weights + j);
    for (size_t lane = 0; lane < kSumLanes; lane += N) {
      V tail = hn::Load(d, state.tail + lane);
      for (size_t j = lane; j < kKeys; j += kSumLanes) tail = hn::Add(tail, hn::Load(d, weights + j));
      hn::Store(tail, d, state.tail + lane);
    }
  }
  /// m, or 0 where no key is visible: -inf - (-inf) is no number.
  static E Shift(const State& state) { return state.maximum == -kInfinity<E> ? E(0) : state.maximum; }

  void Finish(size_t query, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      State& state = states_[i];
      const E tail = FoldHalves<kSumLanes>(state.tail), sum = 1 + tail;
      const bool empty = state.maximum == -kInfinity<E> && tail == 0;
      T* o = row_.out[in::o] ? row_.out[in::o] + (query + i) * width_ : nullptr;
      if (empty) Fill(o, width_, EmptyValue());
      else if (o)
        for (size_t c = 0; c < width_; ++c) o[c] = static_cast<T>(result_[i * width_step_ + c] / sum);
      if (row_.out[in::lse]) row_.out[in::lse][query + i] = static_cast<T>(empty ? -kInfinity<E> : (state.maximum + Log1pOf(tail)) * base_);
      state.inverse = empty ? E(0) : 1 / sum;
    }
  }
  T EmptyValue() const { return row_.attribute[in::empty_row_policy] != 0 ? std::numeric_limits<T>::quiet_NaN() : T(0); }

  /// Turns the kept logits of query i of the block into weights and its go . v into the differences to the pivot's.
  void StartBackward(size_t query, size_t i, size_t begin, size_t end) {
    State& state = states_[i];
    const V shift = hn::Set(d, Shift(state)), pivot = hn::Set(d, state.pivot ? *state.pivot : E(0));
    alignas(64) E sum[kSumLanes] = {};
    for (size_t tile = begin; tile < end; ++tile) {
      E *a = Kept(logits_, tile) + i * kKeys, *pulls = Kept(pulls_, tile) + i * kKeys;
      for (size_t j = 0; j < kKeys; j += N) {
        const V weight = ExpNonPositive(d, hn::Sub(hn::Load(d, a + j), shift)), pull = hn::Sub(hn::Load(d, pulls + j), pivot);
        hn::Store(weight, d, a + j);
        hn::Store(pull, d, pulls + j);
        E* lane = sum + j % kSumLanes;
        hn::Store(FusedMulAdd(weight, pull, hn::Load(d, lane)), d, lane);
      }
    }
    state.mean = FoldHalves<kSumLanes>(sum);
    // The sink's own go . v is 0.
    if (state.pivot && row_.attribute[in::sink] != 0) state.mean -= ExpOf(-state.maximum) * hn::GetLane(pivot);
    state.mean *= state.inverse;
    state.upstream = row_.in[in::glse] ? static_cast<E>(row_.in[in::glse][query + i]) * base_ : E(0);
  }

  void Backward(size_t query, size_t count, size_t tile) {
    const size_t start = tile * kKeys;
    for (size_t i = 0; i < count; ++i) {
      const State& state = states_[i];
      const E *kept = Kept(logits_, tile) + i * kKeys, *pulls = Kept(pulls_, tile) + i * kKeys;
      E *weights = weights_ + i * kKeys, *adjoints = adjoints_ + i * kKeys;
      const V inverse = hn::Set(d, state.inverse), mean = hn::Set(d, state.mean), upstream = hn::Set(d, state.upstream);
      for (size_t j = 0; j < kKeys; j += N) {
        const V p = hn::Mul(hn::Load(d, kept + j), inverse);
        V adjoint = hn::Mul(p, hn::Add(hn::Sub(hn::Load(d, pulls + j), mean), upstream));
        if (cap_ > 0) adjoint = hn::Mul(adjoint, hn::Load(d, Kept(slopes_, tile) + i * kKeys + j));
        hn::Store(p, d, weights + j);
        hn::Store(adjoint, d, adjoints + j);
      }
      if (row_.out[in::gbias]) {
        T* gbias = row_.out[in::gbias] + (query + i) * keys_ + start;
        for (size_t j = 0; j < std::min(kKeys, keys_ - start); ++j) gbias[j] = static_cast<T>(adjoints[j]);
      }
    }
    if (row_.in[in::go] && row_.out[in::gv]) Multiply<Start::current, E>(kKeys, width_, count, {weights_, 1, kKeys}, {upstream_, width_step_}, {gv_ + start * width_step_, width_step_});
    if (row_.out[in::gq] || row_.out[in::gtau]) Multiply<Start::current, E>(count, head_, kKeys, {adjoints_, kKeys, 1}, {key_rows_ + start * head_step_, head_step_}, {gq_, head_step_});
    if (row_.out[in::gk]) Multiply<Start::current, E>(kKeys, head_, count, {adjoints_, 1, kKeys}, {query_rows_, head_step_}, {gk_ + start * head_step_, head_step_});
  }

  void FinishGradients(size_t query, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const E *gq = gq_ + i * head_step_, *q = query_rows_ + i * head_step_;
      const bool empty = states_[i].inverse == 0;
      T* gq_out = row_.out[in::gq] ? row_.out[in::gq] + (query + i) * head_ : nullptr;
      if (empty) {
        Fill(gq_out, head_, EmptyValue());
        Fill(row_.out[in::gbias] ? row_.out[in::gbias] + (query + i) * keys_ : nullptr, keys_, EmptyValue());
        if (row_.out[in::gtau]) row_.out[in::gtau][query + i] = EmptyValue();
        continue;
      }
      Unpack(gq, 1, head_, head_step_, tau_, gq_out);
      if (!row_.out[in::gtau]) continue;
      // sum over keys of da (q . k), summed the other way round.
      E total = 0;
      for (size_t c = 0; c < head_; ++c) total += q[c] * gq[c];
      row_.out[in::gtau][query + i] = static_cast<T>(total);
    }
  }

  const Row<T>& row_;
  const size_t group_, queries_, keys_, head_, width_;
  const size_t head_step_ = Columns<E>(head_), width_step_ = Columns<E>(width_);
  const E tau_, cap_, base_;
  const std::int64_t shift_;
  const bool ordered_;
  const std::int64_t reach_;
  const bool backward_;
  E *keys_transposed_ = nullptr, *values_ = nullptr, *values_transposed_ = nullptr, *key_rows_ = nullptr, *gk_ = nullptr, *gv_ = nullptr;
  E *query_rows_ = nullptr, *upstream_ = nullptr, *result_ = nullptr, *gq_ = nullptr;
  E *logits_ = nullptr, *pulls_ = nullptr, *slopes_ = nullptr, *weights_ = nullptr, *adjoints_ = nullptr;
  State states_[kQueries];
};

void SdpaWide(const Row<float>& row) { Attention<double, float>(row).Run(); }
void SdpaF32(const Row<float>& row) { Attention<float, float>(row).Run(); }
void SdpaF64(const Row<double>& row) { Attention<double, double>(row).Run(); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/loss_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(SdpaWide);
HWY_EXPORT(SdpaF32);
HWY_EXPORT(SdpaF64);

template <class E>
Contract sdpa_contract(const char* note) {
  Contract claim = LossContract<E>(note);
  claim.summation = {SummationTree::Kind::sequential, 1, 0};  // products over d, e and queries; sums over keys are no higher
  claim.key_tile = kKeys;
  claim.pivoted = true;
  claim.reciprocal = true;
  claim.monotone = false;
  return claim;
}

/// f32 and narrower: double arithmetic, one rounding to float. f64 as fast.plain. Bound B0 in the arithmetic's unit
/// roundoff: logits within (d + 5) u sum |q k|, softmax over tiles of 64 keys, sums over the keys in sequence. Finite inputs
/// whose products stay in range; bias may be -inf. One visible key: o = v and zero gradients of the logit, bit for bit. A query
/// without a visible key: by `empty_row_policy`. Bitwise deterministic, the same on every target and for every number of
/// threads; a query's bits depend on nothing that it does not see.
static const Registered accurate{
    RowKernel{.op = "sdpa",
              .name = "fast",
              .summary = "attention by online softmax in double (B0)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SdpaWide)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SdpaF64)(row); },
              .contract_f32 = sdpa_contract<double>("double lanes, one rounding to float; same bits on every SIMD target"),
              .contract_f64 = sdpa_contract<double>("same bits on every SIMD target")}};

/// As `fast` in the arithmetic of the row's type.
static const Registered plain{
    RowKernel{.op = "sdpa",
              .name = "fast.plain",
              .summary = "attention by online softmax in the row's arithmetic (B0)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SdpaF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SdpaF64)(row); },
              .contract_f32 = sdpa_contract<float>("arithmetic of the row's type; same bits on every SIMD target"),
              .contract_f64 = sdpa_contract<double>("arithmetic of the row's type; same bits on every SIMD target")}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
