// The mechanism between tensors and row kernels: gather, convert, run on threads, reduce, scatter.
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <utility>
#include <algorithm>

#include "oracle/kernel/problem_runner.hpp"

namespace sumzero {
namespace {

double pairwise_sum(const double* terms, std::size_t count) {
  if (count <= 2) return count == 0 ? 0 : count == 1 ? terms[0] : terms[0] + terms[1];
  return pairwise_sum(terms, count / 2) + pairwise_sum(terms + count / 2, count - count / 2);
}

constexpr Format format_of(float) { return Format::f32; }
constexpr Format format_of(double) { return Format::f64; }

template <class T>
class RowRunner {
 public:
  RowRunner(RowFunction<T> function, const Kernel& kernel, const Call& call)
      : function_(function), call_(call), signature_(call.signature), classes_(call.input.extents[1]) {
    attributes_ = attribute_values(signature_, call.input);
    reduction_ = reduction_of(signature_, attributes_);
    if (reduction_ == Reduction::mean) denominator_ = mean_denominator<long double>(signature_, call.input, attributes_);
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      const auto found = call.input.inputs.find(signature_.inputs[i].name);
      inputs_[i] = found == call.input.inputs.end() ? nullptr : &found->second;
    }
    labelled_ = signature_.input_with(Role::label) >= 0;
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i)
      offered_[i] = kernel.offers(signature_.outputs[i].name) && !call.outputs[i].bytes.empty();
    plan();
    losses_.resize(reduction_ == Reduction::none ? 0 : static_cast<std::size_t>(call.input.extents[0]));
  }

  void run() {
    const std::int64_t rows = call_.input.extents[0];
    std::exception_ptr failure;
#pragma omp parallel num_threads(call_.threads) if (call_.threads > 1 && rows > 1)
    {
      try {
        Buffers buffers(*this);
#pragma omp for schedule(static)
        for (std::int64_t row = 0; row < rows; ++row) run_row(row, buffers);
      } catch (...) {
#pragma omp critical
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
    if (reduction_ != Reduction::none) write_reduced();
  }

 private:
  struct Buffers {
    std::vector<Scratch<T>> in, out;
    Row<T> row;
    explicit Buffers(const RowRunner& runner) {
      for (std::size_t i = 0; i < runner.signature_.inputs.size(); ++i) {
        const InputSpec& spec = runner.signature_.inputs[i];
        const bool wide = spec.shape == Shape::row || spec.shape == Shape::classes;
        in.emplace_back(wide ? static_cast<std::size_t>(runner.classes_) : 1);
        if (spec.shape != Shape::classes || !runner.inputs_[i]) continue;
        const RowAddress address = row_address(*runner.inputs_[i], spec.shape, 0);
        load_elements(address.first, runner.inputs_[i]->format, address.stride, address.count, in.back().data());
      }
      for (const OutputSpec& spec : runner.signature_.outputs)
        out.emplace_back(spec.shape == Shape::row ? static_cast<std::size_t>(runner.classes_) : 1);
      row.n = static_cast<std::size_t>(runner.classes_);
      row.attribute = runner.attributes_.data();
      row.storage = runner.call_.input.storage;
      for (std::size_t i = 0; i < runner.signature_.inputs.size(); ++i)
        if (runner.inputs_[i] && runner.signature_.inputs[i].element != Element::index) row.in[i] = in[i].data();
      for (const Lane& lane : runner.out_lanes_) row.out[lane.index] = out[lane.index].data();
    }
  };

  void run_row(std::int64_t index, Buffers& buffers) {
    Row<T>& row = buffers.row;
    bool kept = true;
    if (labelled_) {
      row.label = label_of(signature_, call_.input, index);
      kept = row_is_kept(signature_, attributes_, row.label);
    }
    if (upstream_) row.factor = factor(upstream_->get(reduction_ == Reduction::none ? index : 0));
    for (const Lane& lane : in_lanes_) {
      const std::byte* first = lane.first + index * lane.step;
      if (lane.direct) row.in[lane.index] = reinterpret_cast<const T*>(first);
      else load_elements(first, lane.format, lane.stride, lane.count, buffers.in[lane.index].data());
    }
    for (const Lane& lane : out_lanes_)
      if (lane.direct) row.out[lane.index] = reinterpret_cast<T*>(const_cast<std::byte*>(lane.first + index * lane.step));
    if (kept) function_(row);
    for (const Lane& lane : out_lanes_) {
      T* values = row.out[lane.index];
      if (!kept) std::fill_n(values, lane.count, T(0));
      if (lane.reduced) losses_[static_cast<std::size_t>(index)] = static_cast<double>(values[0]);
      else if (!lane.direct)
        store_elements(const_cast<std::byte*>(lane.first + index * lane.step), lane.format, lane.stride, lane.count, values);
    }
  }

  /// How one tensor is met row after row; everything that does not depend on the row.
  struct Lane {
    std::size_t index;         // in the signature
    const std::byte* first;    // of row 0
    std::int64_t step;         // bytes from row to row
    std::int64_t stride, count;
    Format format;
    bool direct;               // every row already is what a kernel may see
    bool reduced = false;      // the term of a reducing loss
  };

  Lane lane_of(std::size_t index, const Tensor& tensor, Shape shape, bool reduced = false) const {
    const RowAddress address = row_address(tensor, shape, 0);
    const std::int64_t step = tensor.strides.empty() || reduced ? 0 : tensor.strides[0] * tensor.width();
    const bool direct = shape == Shape::row && in_place(address, tensor) && step % static_cast<std::int64_t>(alignof(T)) == 0;
    return {index, address.first, step, address.stride == 0 && address.count == 1 ? 1 : address.stride, address.count, tensor.format, direct, reduced};
  }

  void plan() {
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      const InputSpec& spec = signature_.inputs[i];
      if (!inputs_[i] || spec.element == Element::index || spec.shape == Shape::classes) continue;
      if (spec.shape == Shape::reduced) upstream_ = inputs_[i];
      else in_lanes_.push_back(lane_of(i, *inputs_[i], spec.shape));
    }
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      const Shape shape = signature_.outputs[i].shape;
      if (offered_[i]) out_lanes_.push_back(lane_of(i, call_.outputs[i], shape, shape == Shape::reduced && reduction_ != Reduction::none));
    }
  }

  /// The row itself when it already is what a kernel may see: contiguous, of type T and aligned like T.
  const T* in_place(const RowAddress& address, const Tensor& tensor) const {
    const bool usable = tensor.format == format_of(T{}) && address.stride == 1 &&
                        reinterpret_cast<std::uintptr_t>(address.first) % alignof(T) == 0;
    return usable ? reinterpret_cast<const T*>(address.first) : nullptr;
  }

  double factor(double upstream) const {
    if (reduction_ != Reduction::mean) return upstream;
    return denominator_ > 0 ? static_cast<double>(upstream / denominator_) : over_nothing();
  }
  double over_nothing() const {
    const int policy = signature_.attribute("all_ignored_policy");
    return policy >= 0 && attributes_[static_cast<std::size_t>(policy)] != 0 ? 0.0 : std::nan("");
  }

  void write_reduced() {
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      if (signature_.outputs[i].shape != Shape::reduced || !offered_[i]) continue;
      double total = pairwise_sum(losses_.data(), losses_.size());
      if (reduction_ == Reduction::mean) total = denominator_ > 0 ? static_cast<double>(total / denominator_) : over_nothing();
      call_.outputs[i].set(0, total);
    }
  }

  RowFunction<T> function_;
  const Call& call_;
  const Signature& signature_;
  std::int64_t classes_;
  std::vector<double> attributes_;
  Reduction reduction_;
  bool labelled_ = false;
  long double denominator_ = 1;  // weights are summed with 64 significand bits: no error that a bound must count
  std::array<const Tensor*, max_inputs> inputs_{};
  const Tensor* upstream_ = nullptr;  // of a loss
  std::vector<Lane> in_lanes_, out_lanes_;
  std::array<bool, max_outputs> offered_{};
  std::vector<double> losses_;  // rows of a reducing case
};

class RowKernelAdapter final : public Kernel {
 public:
  explicit RowKernelAdapter(RowKernel kernel) : kernel_(std::move(kernel)) {
    op = kernel_.op;
    name = kernel_.name;
    summary = kernel_.summary;
    aliases = kernel_.aliases;
    outputs = kernel_.outputs;
  }
  bool supports(Format storage) const override {
    if (kernel_.only && *kernel_.only != storage) return false;
    return storage == Format::f64 ? kernel_.f64 != nullptr : is_floating(storage) && kernel_.f32 != nullptr;
  }
  Contract contract(Format storage) const override {
    return storage == Format::f64 ? kernel_.contract_f64 : kernel_.contract_f32;
  }
  void run(const Call& call) const override {
    if (!contract(call.input.storage).policies)
      // A mean over nothing is the mechanism's own.
      if (const std::string_view policy = changed_policy(call.input, "all_ignored_policy"); !policy.empty())
        throw Refused("kernel '" + name + "' has one policy for special rows; leave " + std::string(policy) + " at its default");
    if (call.signature.axes != Axes::rows) {
      if (call.input.storage == Format::f64) run_problems(kernel_.f64, *this, call);
      else run_problems(kernel_.f32, *this, call);
    } else if (call.input.storage == Format::f64) RowRunner<double>(kernel_.f64, *this, call).run();
    else RowRunner<float>(kernel_.f32, *this, call).run();
  }

 private:
  RowKernel kernel_;
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(RowKernel kernel) { return std::make_unique<RowKernelAdapter>(std::move(kernel)); }

}  // namespace sumzero
