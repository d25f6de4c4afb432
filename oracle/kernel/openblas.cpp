// Attention as matrix products: OpenBLAS around this project's softmax, the scores in full. A peer for speed and for error.
//
// Built only where OpenBLAS is installed. It computes o, gq, gk and gv, one problem at a time on the calling thread.
#include <cblas.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "oracle/kernel/problem_runner.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

enum Input : std::size_t { q, k, v, bias, mask, go, glse };
enum Output : std::size_t { o, lse, gq, gk, gv, gbias, gtau };
enum Attribute : std::size_t { tau, softcap, causal, window, sink };

/// C [rows, columns] = scale op(A) op(B) + start C, all row-major and dense.
void multiply(bool transpose_a, bool transpose_b, int rows, int columns, int depth, float scale, const float* a, const float* b, float start, float* c) {
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, rows, columns, depth, scale, a,
              transpose_a ? rows : depth, b, transpose_b ? depth : columns, start, c, columns);
}
void multiply(bool transpose_a, bool transpose_b, int rows, int columns, int depth, double scale, const double* a, const double* b, double start, double* c) {
  cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, rows, columns, depth, scale, a,
              transpose_a ? rows : depth, b, transpose_b ? depth : columns, start, c, columns);
}

/// softmax fast.plain on a matrix of scores; memory is kept for the next call of the same size.
template <class T>
class Softmax {
 public:
  void resize(std::int64_t rows, std::int64_t n) {
    const std::vector<std::int64_t> extents = {rows, n};
    if (input_.extents == extents) return;
    const Format format = sizeof(T) == sizeof(double) ? Format::f64 : Format::f32;
    input_ = {.op = "softmax", .storage = format, .extents = extents, .attributes = {{"masked_policy", 1}}, .inputs = {}};
    outputs_.clear();
    for (const char* name : {"x", "g"}) {
      input_.inputs[name] = Tensor::contiguous(format, extents);
      outputs_.push_back(Tensor::contiguous(format, extents));
    }
  }
  T* logits() { return data(input_.inputs.at("x")); }
  T* upstream() { return data(input_.inputs.at("g")); }
  void run(bool backward) {
    const Kernel& kernel = Registry::global().kernel_named("softmax", "fast.plain", input_.storage);
    std::vector<Tensor> outputs(2);
    for (std::size_t i = 0; i < (backward ? 2 : 1); ++i) outputs[i] = std::move(outputs_[i]);
    kernel.run(Call{Registry::global().operator_named("softmax").signature(), input_, outputs, 1});
    for (std::size_t i = 0; i < (backward ? 2 : 1); ++i) outputs_[i] = std::move(outputs[i]);
  }
  const T* probabilities() { return data(outputs_[0]); }
  const T* gradient() { return data(outputs_[1]); }

 private:
  static T* data(Tensor& tensor) { return reinterpret_cast<T*>(tensor.bytes.data()); }
  Case input_;
  std::vector<Tensor> outputs_;
};

/// Hides scores by bias, mask and causal order.
template <class T>
void mask_scores(const Row<T>& row, std::int64_t head, std::int64_t queries, std::int64_t keys, T* scores) {
  if (!row.in[bias] && !row.in[mask] && row.attribute[causal] == 0) return;
  const std::int64_t shift = row.attribute[causal] == 2 ? keys - queries : 0;
  for (std::int64_t t = 0; t < queries; ++t)
    for (std::int64_t j = 0; j < keys; ++j) {
      T& score = scores[t * keys + j];
      const std::int64_t at = (head * queries + t) * keys + j;
      if (row.in[bias]) score += row.in[bias][at];
      if ((row.in[mask] && row.in[mask][at] == 0) || (row.attribute[causal] != 0 && j > t + shift)) score = -std::numeric_limits<T>::infinity();
    }
}

template <class T>
void attention(const Row<T>& row) {
  const std::int64_t* extents = row.extents;
  const std::int64_t queries = extents[axis::queries], keys = extents[axis::keys], group = extents[axis::heads] / extents[axis::kv_heads];
  const int t = static_cast<int>(queries), n = static_cast<int>(keys), d = static_cast<int>(extents[axis::head_size]), e = static_cast<int>(extents[axis::value_size]);
  const T scale = static_cast<T>(row.attribute[tau]);
  openblas_set_num_threads(1);
  thread_local Softmax<T> softmax;
  softmax.resize(queries, keys);
  for (std::int64_t head = 0; head < group; ++head) {
    const T *head_q = row.in[q] + head * queries * d, *head_go = row.in[go] ? row.in[go] + head * queries * e : nullptr;
    const bool backward = head_go && (row.out[gq] || row.out[gk] || row.out[gv]);
    const T start = head == 0 ? T(0) : T(1);  // gk and gv sum over the group
    multiply(false, true, t, n, d, scale, head_q, row.in[k], T(0), softmax.logits());
    mask_scores(row, head, queries, keys, softmax.logits());
    if (backward) multiply(false, true, t, n, e, T(1), head_go, row.in[v], T(0), softmax.upstream());
    softmax.run(backward);
    const T* p = softmax.probabilities();
    if (row.out[o]) multiply(false, false, t, e, n, T(1), p, row.in[v], T(0), row.out[o] + head * queries * e);
    if (!backward) {
      if (row.out[gq]) std::fill_n(row.out[gq] + head * queries * d, queries * d, T(0));
      if (row.out[gk]) std::fill_n(row.out[gk], keys * d, T(0));
      if (row.out[gv]) std::fill_n(row.out[gv], keys * e, T(0));
      continue;
    }
    const T* da = softmax.gradient();
    if (row.out[gq]) multiply(false, false, t, d, n, scale, da, row.in[k], T(0), row.out[gq] + head * queries * d);
    if (row.out[gk]) multiply(true, false, n, d, t, scale, da, head_q, start, row.out[gk]);
    if (row.out[gv]) multiply(true, false, n, e, t, T(1), p, head_go, start, row.out[gv]);
  }
}

/// OpenBLAS does not say in which order it adds.
Contract openblas_contract(Format storage) {
  Contract claim = Registry::global().kernel_named("softmax", "fast.plain", storage).contract(storage);
  claim.summation = {};
  claim.pivoted = true;  // softmax takes upstream relative to the key of the largest logit
  claim.monotone = false;
  claim.policies = false;
  claim.note = "matrix products in OpenBLAS's order, softmax by fast.plain";
  return claim;
}

/// Not a RowKernel: its contract comes from the registry, which is complete only after start-up.
class OpenBlas final : public Kernel {
 public:
  OpenBlas() {
    op = "sdpa", name = "openblas";
    summary = "two matrix products by OpenBLAS around softmax, scores in full";
    outputs = {"o", "gq", "gk", "gv"};
  }
  bool supports(Format storage) const override { return is_floating(storage); }
  Contract contract(Format storage) const override { return openblas_contract(storage); }
  void run(const Call& call) const override {
    const std::vector<double> attributes = attribute_values(call.signature, call.input);
    if (attributes[softcap] != 0 || attributes[window] != 0 || attributes[sink] != 0 || call.input.inputs.contains("glse"))
      throw Refused("kernel 'openblas' has no softcap, window, sink or cotangent of lse; leave them out");
    if (const std::string_view policy = changed_policy(call.input); !policy.empty())
      throw Refused("kernel 'openblas' has one policy for special rows; leave " + std::string(policy) + " at its default");
    if (call.input.storage == Format::f64) run_problems<double>(attention<double>, *this, call);
    else run_problems<float>(attention<float>, *this, call);
  }
};
const Registered openblas{std::make_unique<OpenBlas>()};

}  // namespace
}  // namespace sumzero
