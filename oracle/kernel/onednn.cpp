// oneDNN's CPU primitives as kernels under test: softmax and log_softmax, forward and backward, on contiguous
// rows.
//
// Built only where oneDNN 2.x is installed. What a format can do is oneDNN's answer, not a list kept here: a
// primitive that it does not implement on this processor becomes the verdict `refused`, with its message.
#include <algorithm>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "reference/operator.hpp"

namespace sumzero {
namespace {

/// oneDNN on its OpenMP runtime takes the thread count of the calling thread; restored on exit.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) {
#ifdef _OPENMP
    before_ = omp_get_max_threads();
    omp_set_num_threads(threads > 0 ? threads : 1);
#else
    static_cast<void>(threads);
#endif
  }
  ~ThreadCount() {
#ifdef _OPENMP
    omp_set_num_threads(before_);
#endif
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
#ifdef _OPENMP
  int before_ = 1;
#endif
};

dnnl::memory::data_type data_type(Format storage) {
  switch (storage) {
    case Format::f32:
      return dnnl::memory::data_type::f32;
    case Format::bf16:
      return dnnl::memory::data_type::bf16;
    case Format::f16:
      return dnnl::memory::data_type::f16;
    default:
      throw Refused("oneDNN 2.x has no " + std::string(name(storage)) + " softmax; use f32 or bf16");
  }
}

dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct Softmax {
  using Forward = dnnl::softmax_forward;
  using Backward = dnnl::softmax_backward;
};
struct LogSoftmax {
  using Forward = dnnl::logsoftmax_forward;
  using Backward = dnnl::logsoftmax_backward;
};

/// What a compiled primitive depends on.
struct Problem {
  Format storage;
  std::int64_t rows, classes;
  bool backward;
  int threads;
  bool operator==(const Problem&) const = default;
};

struct Compiled {
  dnnl::memory::desc layout;
  dnnl::primitive primitive;
};

template <class Family>
Compiled compile(const Problem& problem) {
  const dnnl::memory::desc layout({problem.rows, problem.classes}, data_type(problem.storage),
                                  dnnl::memory::format_tag::ab);
  const int class_axis = 1;
  const typename Family::Forward::primitive_desc forward(
      typename Family::Forward::desc(dnnl::prop_kind::forward_training, layout, class_axis), cpu());
  if (!problem.backward) return {layout, typename Family::Forward(forward)};
  const typename Family::Backward::primitive_desc backward(
      typename Family::Backward::desc(layout, layout, class_axis), cpu(), forward);
  return {layout, typename Family::Backward(backward)};
}

/// Compiled primitives of this thread, the most recently used first. A bounded list, because a campaign sees
/// many shapes and each primitive holds generated code.
template <class Family>
const Compiled& compiled(const Problem& problem) {
  constexpr std::size_t capacity = 64;
  thread_local std::list<std::pair<Problem, Compiled>> recent;
  for (auto entry = recent.begin(); entry != recent.end(); ++entry) {
    if (!(entry->first == problem)) continue;
    recent.splice(recent.begin(), recent, entry);
    return recent.front().second;
  }
  recent.emplace_front(problem, compile<Family>(problem));
  if (recent.size() > capacity) recent.pop_back();
  return recent.front().second;
}

/// oneDNN reads and writes contiguous memory in place; anything else goes through a copy.
class Contiguous {
 public:
  explicit Contiguous(const Tensor& input) : copy_(input.is_contiguous() ? Tensor{} : input.packed()) {
    // oneDNN's interface has no const; a source is only read.
    data_ = input.is_contiguous() ? const_cast<std::byte*>(input.bytes.data()) : copy_.bytes.data();
  }
  explicit Contiguous(Tensor& output, bool wanted, Format format, const std::vector<std::int64_t>& shape)
      : target_(wanted ? &output : nullptr) {
    const bool direct = wanted && dense(output);
    if (!direct) copy_ = Tensor::contiguous(format, shape);
    data_ = direct ? output.bytes.data() + output.offset * output.width() : copy_.bytes.data();
  }
  dnnl::memory view(const dnnl::memory::desc& layout) const { return dnnl::memory(layout, cpu(), data_); }
  /// Hands a result that was computed in a copy to the caller's buffer.
  void deliver() const {
    if (!target_ || copy_.bytes.empty()) return;
    for (std::int64_t i = 0; i < copy_.elements(); ++i) target_->set(i, copy_.get(i));
  }

 private:
  static bool dense(const Tensor& tensor) { return tensor.strides[1] == 1 && tensor.strides[0] == tensor.shape[1]; }
  Tensor copy_;
  Tensor* target_ = nullptr;
  std::byte* data_ = nullptr;
};

template <class Family>
class OneDnnKernel : public Kernel {
 public:
  OneDnnKernel(std::string operator_name, std::string one_line, bool divides) : divides_(divides) {
    op = std::move(operator_name);
    name = "onednn";
    summary = std::move(one_line);
  }

  /// Every format may be asked for; run refuses what oneDNN does not implement.
  bool supports(Format storage) const override { return is_floating(storage); }

  /// Declared, not derived: oneDNN documents no bound. The figures are the relative tolerances that its own
  /// test program benchdnn grants a whole f32 result: 1e-6 = 16.8 u for softmax, 4e-6 = 67.1 u for
  /// logsoftmax. benchdnn keeps log s away from 0; nearer, the generated AVX2 logarithm has an absolute error
  /// of some 1e-6 instead, and log 1 is not 0. Its exponential flushes not only subnormal results but all
  /// below 2^-125, and is not monotone. The order of sums differs between processors and directions.
  Contract contract(Format) const override {
    Contract claim;
    claim.accumulator = Format::f32;
    claim.exp_error = 17;
    claim.log_error = 68;
    claim.summation.kind = SummationTree::Kind::unknown;
    claim.flush_to_zero = true;
    claim.reciprocal = divides_;
    claim.monotone = false;
    claim.stores_intermediates = true;
    claim.kind = "declared";
    claim.note = "oneDNN documents no error bound; figures are the tolerances of its test program";
    return claim;
  }

  void run(const Call& call) const override {
    // oneDNN has no limit mode: special rows come out as its arithmetic has them.
    if (const std::string_view policy = changed_policy(call.input); !policy.empty())
      throw Refused("oneDNN has no " + std::string(policy) + "; leave it at nan");
    if (call.input.extents[0] == 0) return;
    const ThreadCount scope(call.threads);
    try {
      execute(call);
    } catch (const dnnl::error& failure) {
      throw Refused("oneDNN " + op + ", " + std::string(sumzero::name(call.input.storage)) +
                    " on this processor: " + failure.message + " (" +
                    std::string(status_name(failure.status)) + ")");
    }
  }

 private:
  static std::string_view status_name(dnnl_status_t status) {
    switch (status) {
      case dnnl_unimplemented:
        return "unimplemented";
      case dnnl_invalid_arguments:
        return "invalid arguments";
      case dnnl_out_of_memory:
        return "out of memory";
      default:
        return "runtime error";
    }
  }

  void execute(const Call& call) const {
    const Problem forward{call.input.storage, call.input.extents[0], call.input.extents[1], false,
                          call.threads};
    const Tensor& logits = call.input.inputs.at("x");
    const Contiguous x(logits);
    const Contiguous value(call.outputs[0], !call.outputs[0].bytes.empty(), logits.format, logits.shape);
    dnnl::stream stream(cpu());
    const Compiled& first = compiled<Family>(forward);
    first.primitive.execute(stream, {{DNNL_ARG_SRC, x.view(first.layout)}, {DNNL_ARG_DST, value.view(first.layout)}});
    stream.wait();
    value.deliver();

    const auto upstream = call.input.inputs.find("g");
    if (upstream == call.input.inputs.end() || call.outputs[1].bytes.empty()) return;
    Problem backward = forward;
    backward.backward = true;
    const Contiguous g(upstream->second);
    const Contiguous gradient(call.outputs[1], true, logits.format, logits.shape);
    const Compiled& second = compiled<Family>(backward);
    second.primitive.execute(stream, {{DNNL_ARG_DST, value.view(second.layout)},
                                      {DNNL_ARG_DIFF_DST, g.view(second.layout)},
                                      {DNNL_ARG_DIFF_SRC, gradient.view(second.layout)}});
    stream.wait();
    gradient.deliver();
  }

  bool divides_;
};

static const Registered softmax_kernel{std::make_unique<OneDnnKernel<Softmax>>(
    "softmax", "oneDNN softmax primitive, forward and backward", true)};
static const Registered log_softmax_kernel{std::make_unique<OneDnnKernel<LogSoftmax>>(
    "log_softmax", "oneDNN logsoftmax primitive, forward and backward", false)};

}  // namespace
}  // namespace sumzero
