// The mechanism between tensors and row kernels: gather, convert, run on threads, reduce, scatter.
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <utility>
#include <algorithm>

#include "reference/operator.hpp"

namespace sumzero {
namespace {

/// 64-byte aligned scratch memory for rows.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes == 0 ? 64 : bytes));
    if (!data_) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  Scratch(Scratch&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() { return data_; }

 private:
  T* data_;
};

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
    }
  };

  void run_row(std::int64_t index, Buffers& buffers) {
    Row<T> row;
    row.n = static_cast<std::size_t>(classes_);
    row.attribute = attributes_.data();
    row.storage = call_.input.storage;
    bool kept = true;
    if (labelled_) {
      row.label = label_of(signature_, call_.input, index);
      kept = row_is_kept(signature_, attributes_, row.label);
    }
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      const InputSpec& spec = signature_.inputs[i];
      if (!inputs_[i] || spec.element == Element::index) continue;
      row.in[i] = buffers.in[i].data();
      if (spec.shape == Shape::classes) continue;
      if (spec.shape == Shape::reduced) {
        row.factor = factor(inputs_[i]->get(reduction_ == Reduction::none ? index : 0));
        continue;
      }
      const RowAddress address = row_address(*inputs_[i], spec.shape, index);
      if (const T* direct = in_place(address, *inputs_[i])) row.in[i] = direct;
      else load_elements(address.first, inputs_[i]->format, address.stride, address.count, buffers.in[i].data());
    }
    std::array<RowAddress, max_outputs> target{};
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      if (!offered_[i]) continue;
      const OutputSpec& spec = signature_.outputs[i];
      target[i] = row_address(call_.outputs[i], spec.shape, index);
      T* direct = const_cast<T*>(in_place(target[i], call_.outputs[i]));
      row.out[i] = direct && spec.shape == Shape::row ? direct : buffers.out[i].data();
    }
    if (kept) function_(row);
    for (std::size_t i = 0; i < signature_.outputs.size(); ++i) {
      if (!row.out[i]) continue;
      const Shape shape = signature_.outputs[i].shape;
      if (!kept) std::fill_n(row.out[i], shape == Shape::row ? row.n : 1, T(0));
      if (shape == Shape::reduced && reduction_ != Reduction::none) {
        losses_[static_cast<std::size_t>(index)] = static_cast<double>(row.out[i][0]);
        continue;
      }
      const std::byte* here = reinterpret_cast<const std::byte*>(row.out[i]);
      if (here == target[i].first) continue;
      store_elements(const_cast<std::byte*>(target[i].first), call_.outputs[i].format, target[i].stride == 0 ? 1 : target[i].stride,
                     target[i].count, row.out[i]);
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
      for (const auto& [attribute, value] : call.input.attributes)
        if (attribute.ends_with("_policy") && attribute != "all_ignored_policy" && value != 0)
          throw Refused("kernel '" + name + "' has one policy for special rows; leave " + attribute + " at its default");
    if (call.input.storage == Format::f64) RowRunner<double>(kernel_.f64, *this, call).run();
    else RowRunner<float>(kernel_.f32, *this, call).run();
  }

 private:
  RowKernel kernel_;
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(RowKernel kernel) { return std::make_unique<RowKernelAdapter>(std::move(kernel)); }

}  // namespace sumzero
