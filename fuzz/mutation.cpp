#include "fuzz/mutation.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
/// Elements of a vector register that the defects of lanes are about.
constexpr std::int64_t lanes = 8;

/// What the call does in place of `right`.
using Detour = std::function<void(const Kernel& right, const Call& call, bool planted)>;

class Mutated final : public Kernel {
 public:
  Mutated(const Kernel& right, Detour detour, bool planted) : right_(right), detour_(std::move(detour)), planted_(planted) {
    op = right.op, name = right.name, summary = right.summary, outputs = right.outputs;
  }
  bool supports(Format storage) const override { return right_.supports(storage); }
  Contract contract(Format storage) const override { return right_.contract(storage); }
  void run(const Call& call) const override { detour_(right_, call, planted_); }

 private:
  const Kernel& right_;
  Detour detour_;
  bool planted_;
};

class Claiming final : public Kernel {
 public:
  Claiming(const Kernel& right, std::function<void(Contract&)> claim) : right_(right), claim_(std::move(claim)) {
    op = right.op, name = right.name, summary = right.summary, outputs = right.outputs;
  }
  bool supports(Format storage) const override { return right_.supports(storage); }
  Contract contract(Format storage) const override {
    Contract contract = right_.contract(storage);
    claim_(contract);
    return contract;
  }
  void run(const Call& call) const override { right_.run(call); }

 private:
  const Kernel& right_;
  std::function<void(Contract&)> claim_;
};

using Applies = std::function<bool(const Signature&, const Kernel&, Format)>;

const Applies always = [](const Signature&, const Kernel&, Format) { return true; };
const Applies with_logits = [](const Signature& signature, const Kernel&, Format) { return signature.input_with(Role::logits) >= 0; };
const Applies wide_storage = [](const Signature&, const Kernel&, Format storage) { return storage == accumulator_of(storage); };
const Applies narrow_storage = [](const Signature& signature, const Kernel& right, Format storage) {
  return storage != accumulator_of(storage) && right.supports(accumulator_of(storage)) &&
         std::any_of(signature.outputs.begin(), signature.outputs.end(),
                     [&](const OutputSpec& spec) { return right.offers(spec.name) && element_format(spec.element, storage) == storage; });
};
Applies both(Applies a, Applies b) {
  return [a = std::move(a), b = std::move(b)](const Signature& signature, const Kernel& right, Format storage) {
    return a(signature, right, storage) && b(signature, right, storage);
  };
}

Mutation detour(std::string name, std::string defect, Applies applies, Detour around) {
  return {std::move(name), std::move(defect), std::move(applies),
          [around](const Kernel& right, bool planted) -> std::unique_ptr<Kernel> { return std::make_unique<Mutated>(right, around, planted); }};
}

/// A defect that lasts from one call to the next; every kernel has a state of its own.
template <class State>
Mutation remembering(std::string name, std::string defect, Applies applies, void (*around)(State&, const Kernel&, const Call&, bool)) {
  return {std::move(name), std::move(defect), std::move(applies), [around](const Kernel& right, bool planted) -> std::unique_ptr<Kernel> {
            struct Guarded {
              std::mutex mutex;
              State state;
            };
            const auto memory = std::make_shared<Guarded>();
            return std::make_unique<Mutated>(
                right,
                [memory, around](const Kernel& kernel, const Call& call, bool wrong) {
                  const std::lock_guard lock(memory->mutex);
                  around(memory->state, kernel, call, wrong);
                },
                planted);
          }};
}

Mutation claim(std::string name, std::string defect, Applies applies, std::function<void(Contract&)> change) {
  return {std::move(name), std::move(defect), std::move(applies), [change](const Kernel& right, bool planted) -> std::unique_ptr<Kernel> {
            return std::make_unique<Claiming>(right, planted ? change : [](Contract&) {});
          }};
}

// ---------------------------------------------------------------------------------------------------------
// Defects of outputs

/// The lines of a tensor along its last axis; a tensor without elements has none.
struct Lines {
  std::int64_t count = 0, length = 0;
  explicit Lines(const Tensor& tensor) {
    if (tensor.bytes.empty() || tensor.elements() == 0) return;
    length = tensor.shape.empty() ? 1 : tensor.shape.back();
    count = tensor.elements() / length;
  }
};

/// Changes every line of every floating output behind the right kernel: `change(tensor, first element, length)`.
Detour on_lines(std::function<void(Tensor&, std::int64_t first, std::int64_t length)> change) {
  return [change = std::move(change)](const Kernel& right, const Call& call, bool planted) {
    right.run(call);
    if (!planted) return;
    for (Tensor& tensor : call.outputs) {
      const Lines lines_of(tensor);
      if (!is_floating(tensor.format)) continue;
      for (std::int64_t line = 0; line < lines_of.count; ++line) change(tensor, line * lines_of.length, lines_of.length);
    }
  };
}

/// The next number of the format away from zero, `steps` times.
double away(Format format, double value, int steps) {
  for (int i = 0; i < steps; ++i) {
    const double next = round_to(format, value + std::copysign(std::max(smallest_subnormal(format), 2 * unit_roundoff(format) * std::fabs(value)), value));
    if (!std::isfinite(next)) break;
    value = next;
  }
  return value;
}

std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

void nudge_some(Tensor& tensor, std::int64_t first, std::int64_t length) {
  std::int64_t largest = first;
  for (std::int64_t i = first; i < first + length; ++i)
    if (std::fabs(tensor.get(i)) > std::fabs(tensor.get(largest))) largest = i;
  const double value = tensor.get(largest);
  if (!std::isfinite(value) || value == 0 || bits_of(value) * 0x9e3779b97f4a7c15u >> 60 != 0) return;
  tensor.set(largest, away(tensor.format, value, accumulator_of(tensor.format) == tensor.format ? 64 : 2));
}

void swap_lanes(Tensor& tensor, std::int64_t first, std::int64_t length) {
  for (std::int64_t j = 3; j + 1 < length; j += lanes) {
    const double low = tensor.get(first + j), high = tensor.get(first + j + 1);
    tensor.set(first + j, high);
    tensor.set(first + j + 1, low);
  }
}

void repeat_vector_before(Tensor& tensor, std::int64_t first, std::int64_t length) {
  if (length < lanes) return;
  for (std::int64_t j = length - length % lanes; j < length; ++j) tensor.set(first + j, tensor.get(first + j - lanes));
}

/// Outputs of the same shapes in the format that the kernel computes in, from inputs that were widened without error.
std::vector<Tensor> wide_outputs(const Kernel& right, const Call& call) {
  Case wide = call.input;
  const Format compute = accumulator_of(call.input.storage);
  wide.storage = compute;
  for (const InputSpec& spec : call.signature.inputs) {
    const auto found = wide.inputs.find(spec.name);
    if (found == wide.inputs.end() || element_format(spec.element, compute) == found->second.format) continue;
    const Tensor& narrow = call.input.inputs.at(spec.name);
    Tensor tensor = Tensor::contiguous(compute, narrow.shape);
    for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, narrow.get(i));
    found->second = std::move(tensor);
  }
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < call.outputs.size(); ++i)
    outputs.push_back(call.outputs[i].bytes.empty() ? Tensor{}
                                                    : Tensor::contiguous(element_format(call.signature.outputs[i].element, compute), call.outputs[i].shape));
  right.run({call.signature, wide, outputs, call.threads});
  return outputs;
}

/// Stores what was computed in the wide format by `store(format, value)`.
Detour stored_by(double (*store)(Format format, double value)) {
  return [store](const Kernel& right, const Call& call, bool planted) {
    const std::vector<Tensor> wide = wide_outputs(right, call);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      Tensor& tensor = call.outputs[i];
      for (std::int64_t e = 0; e < (wide[i].bytes.empty() ? 0 : wide[i].elements()); ++e) {
        const double value = wide[i].get(e);
        tensor.set(e, planted && is_floating(tensor.format) && std::isfinite(value) ? store(tensor.format, value) : value);
      }
    }
  };
}

double truncated(Format format, double value) {
  const double nearest = round_to(format, value);
  if (!(std::fabs(nearest) > std::fabs(value))) return nearest;
  // One step back towards zero: half of the spacing below suffices to fall on the other side.
  return round_to(format, nearest - std::copysign(std::max(smallest_subnormal(format), unit_roundoff(format) * std::fabs(nearest)), nearest));
}

/// The sum of two parts when the first was stored in the format before the second came.
double by_parts(Format format, double value) { return round_to(format, 0.625 * value) + (value - 0.625 * value); }

struct Previous {
  std::map<std::vector<std::int64_t>, std::vector<Tensor>> outputs;  ///< by extents
};

void keep_last_row(Previous& previous, const Kernel& right, const Call& call, bool planted) {
  right.run(call);
  std::vector<Tensor> now;
  for (const Tensor& tensor : call.outputs) now.push_back(tensor.bytes.empty() ? Tensor{} : tensor.packed());
  std::vector<Tensor>& before = previous.outputs[call.input.extents];
  for (std::size_t i = 0; planted && i < before.size(); ++i) {
    const Lines lines_of(now[i]);
    if (before[i].shape != now[i].shape || lines_of.count == 0) continue;
    for (std::int64_t e = now[i].elements() - lines_of.length; e < now[i].elements(); ++e) call.outputs[i].set(e, before[i].get(e));
  }
  before = std::move(now);
}

struct Calls {
  std::uint64_t count = 0;
};

/// The last finite number that is not zero comes out one step larger.
void one_ulp_more(const Call& call) {
  for (Tensor& tensor : call.outputs) {
    if (tensor.bytes.empty() || !is_floating(tensor.format)) continue;
    for (std::int64_t e = tensor.elements(); e-- > 0;)
      if (const double value = tensor.get(e); std::isfinite(value) && value != 0) return tensor.set(e, away(tensor.format, value, 1));
  }
}

// ---------------------------------------------------------------------------------------------------------
// Defects of how logits enter

/// Calls the kernel on logits that `change` made of one row: `change(row)`.
Detour on_logits(std::function<void(std::vector<double>&)> change) {
  return [change = std::move(change)](const Kernel& right, const Call& call, bool planted) {
    Case other = call.input;
    Tensor& tensor = other.inputs.at(call.signature.inputs[static_cast<std::size_t>(call.signature.input_with(Role::logits))].name);
    tensor = tensor.packed();
    const Lines lines_of(tensor);
    std::vector<double> row(static_cast<std::size_t>(lines_of.length));
    for (std::int64_t line = 0; planted && line < lines_of.count; ++line) {
      for (std::int64_t j = 0; j < lines_of.length; ++j) row[static_cast<std::size_t>(j)] = tensor.get(line * lines_of.length + j);
      change(row);
      for (std::int64_t j = 0; j < lines_of.length; ++j) tensor.set(line * lines_of.length + j, row[static_cast<std::size_t>(j)]);
    }
    right.run({call.signature, other, call.outputs, call.threads});
  };
}

double largest(const std::vector<double>& row) {
  double m = -infinity;
  for (const double x : row) m = x > m ? x : m;
  return m;
}

void drop_tail(std::vector<double>& row) {
  if (row.size() < 2) return;
  const std::size_t tail = std::max<std::size_t>(1, row.size() % static_cast<std::size_t>(lanes));
  std::fill(row.end() - static_cast<std::ptrdiff_t>(std::min(tail, row.size() - 1)), row.end(), -infinity);
}

/// Terms that came before a new maximum stay scaled by the old one.
void forget_rescaling(std::vector<double>& row) {
  const double m = largest(row);
  double running = -infinity;
  for (double& x : row) {
    running = x > running ? x : running;
    if (std::isfinite(x) && std::isfinite(m)) x += m - running;
  }
}

void lose_nan(std::vector<double>& row) {
  for (double& x : row)
    if (std::isnan(x)) x = -infinity;
}

/// exp(max(x - m, -20)).
void guard_exp(std::vector<double>& row) {
  const double m = largest(row);
  for (double& x : row)
    if (std::isfinite(x) && std::isfinite(m)) x = std::max(x, m - 20);
}

void round_early(std::vector<double>& row) {
  for (double& x : row) x = round_to(Format::bf16, x);
}

/// Rows whose exponentials overflow because the maximum was taken over the first vector come out as NaN.
void first_vector_maximum(const Kernel& right, const Call& call, bool planted) {
  right.run(call);
  const int index = call.signature.input_with(Role::logits);
  const Tensor& x = call.input.inputs.at(call.signature.inputs[static_cast<std::size_t>(index)].name);
  const Lines lines_of(x);
  const double overflow = accumulator_of(call.input.storage) == Format::f64 ? 709.8 : 88.8;
  for (std::int64_t row = 0; planted && row < lines_of.count; ++row) {
    double first = -infinity, all = -infinity;
    for (std::int64_t j = 0; j < lines_of.length; ++j) {
      const double value = x.get(row * lines_of.length + j);
      if (j < lanes) first = std::max(first, value);
      all = std::max(all, value);
    }
    if (!(all - first > overflow)) continue;
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      Tensor& tensor = call.outputs[i];
      if (tensor.bytes.empty() || !is_floating(tensor.format) || call.signature.outputs[i].shape != Shape::row) continue;
      for (std::int64_t j = 0; j < lines_of.length; ++j) tensor.set(row * lines_of.length + j, std::nan(""));
    }
  }
}

/// Probabilities and gradients divided by a sum that was kept in 8 bits: small terms are lost once it has grown.
void eight_bit_sum(const Kernel& right, const Call& call, bool planted) {
  right.run(call);
  const int index = call.signature.input_with(Role::logits);
  const Tensor& x = call.input.inputs.at(call.signature.inputs[static_cast<std::size_t>(index)].name);
  const Lines lines_of(x);
  for (std::int64_t row = 0; planted && row < lines_of.count; ++row) {
    std::vector<double> logits(static_cast<std::size_t>(lines_of.length));
    for (std::int64_t j = 0; j < lines_of.length; ++j) logits[static_cast<std::size_t>(j)] = x.get(row * lines_of.length + j);
    const double m = largest(logits);
    double sum = 0, narrow = 0;
    for (const double v : logits) sum += std::exp(v - m), narrow = round_to(Format::bf16, narrow + std::exp(v - m));
    if (!std::isfinite(sum) || !(narrow > 0)) continue;
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      const OutputSpec& spec = call.signature.outputs[i];
      Tensor& tensor = call.outputs[i];
      if (tensor.bytes.empty() || spec.shape != Shape::row || !((spec.marks & sums_to_one) || spec.gradient_of == index)) continue;
      for (std::int64_t e = row * lines_of.length; e < (row + 1) * lines_of.length; ++e) tensor.set(e, tensor.get(e) * (sum / narrow));
    }
  }
}

bool divides_by_the_sum(const Signature& signature, const Kernel& right, Format) {
  const int logits = signature.input_with(Role::logits);
  return logits >= 0 && std::any_of(signature.outputs.begin(), signature.outputs.end(), [&](const OutputSpec& spec) {
           return right.offers(spec.name) && spec.shape == Shape::row && ((spec.marks & sums_to_one) || spec.gradient_of == logits);
         });
}

bool has_vectors_of_upstream(const Signature& signature, const Kernel&, Format) { return signature.input_with(Role::upstream) >= 0; }

void ones_for_upstream(const Kernel& right, const Call& call, bool planted) {
  Case other = call.input;
  if (planted)
    for (const InputSpec& spec : call.signature.inputs)
      if (spec.role == Role::upstream) other.inputs.erase(spec.name);
  right.run({call.signature, other, call.outputs, call.threads});
}

// ---------------------------------------------------------------------------------------------------------
// Defects of addresses

struct Plans {
  struct Layout {
    std::vector<std::int64_t> strides;
    std::int64_t offset;
  };
  std::map<std::pair<std::vector<std::int64_t>, std::string>, Layout> layouts;  ///< by extents and input
};

/// Strides of the first call with these extents serve all later ones. Behind the end of the storage, where the defect would
/// read what happens to lie there, it reads from the start again.
void cached_strides(Plans& plans, const Kernel& right, const Call& call, bool planted) {
  Case other = call.input;
  for (auto& [name, tensor] : other.inputs) {
    const auto [found, fresh] = plans.layouts.emplace(std::pair(call.input.extents, name), Plans::Layout{tensor.strides, tensor.offset});
    // A label from elsewhere would be no class at all, and end the process.
    if (!planted || fresh || !is_floating(tensor.format) || found->second.strides.size() != tensor.shape.size()) continue;
    Tensor plan = tensor;
    plan.strides = found->second.strides, plan.offset = found->second.offset;
    const std::int64_t size = static_cast<std::int64_t>(tensor.bytes.size()) / tensor.width();
    Tensor read = Tensor::contiguous(tensor.format, tensor.shape);
    for (std::int64_t i = 0; i < read.elements(); ++i)
      std::memcpy(read.bytes.data() + i * read.width(), tensor.bytes.data() + (plan.position(i) % size + size) % size * read.width(), static_cast<std::size_t>(read.width()));
    tensor = std::move(read);
  }
  right.run({call.signature, other, call.outputs, call.threads});
}

/// A whole vector is stored where a line ends in a part of one.
void whole_vector_at_the_end(const Kernel& right, const Call& call, bool planted) {
  right.run(call);
  for (Tensor& tensor : call.outputs) {
    const Lines lines_of(tensor);
    if (!planted || lines_of.count == 0 || lines_of.length % lanes == 0) continue;
    const std::int64_t end = tensor.position(tensor.elements() - 1) + 1;
    const std::int64_t spare = static_cast<std::int64_t>(tensor.bytes.size()) / tensor.width() - end;
    std::memset(tensor.bytes.data() + end * tensor.width(), 0, static_cast<std::size_t>(std::min(spare, lanes - lines_of.length % lanes) * tensor.width()));
  }
}

void last_element_not_written(const Kernel& right, const Call& call, bool planted) {
  std::vector<Tensor> outputs = call.outputs;
  right.run({call.signature, call.input, outputs, call.threads});
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (std::int64_t e = 0, end = outputs[i].bytes.empty() ? 0 : outputs[i].elements() - (planted && outputs[i].elements() > 1 ? 1 : 0); e < end; ++e)
      std::memcpy(call.outputs[i].bytes.data() + call.outputs[i].position(e) * outputs[i].width(),
                  outputs[i].bytes.data() + outputs[i].position(e) * outputs[i].width(), static_cast<std::size_t>(outputs[i].width()));
}

constexpr std::int64_t far = std::int64_t{1} << 31;

/// Positions of elements are computed in 31 bits.
void short_positions(const Kernel& right, const Call& call, bool planted) {
  Case other;
  other.op = call.input.op, other.storage = call.input.storage, other.extents = call.input.extents, other.attributes = call.input.attributes;
  for (const auto& [name, tensor] : call.input.inputs) {
    Tensor read = Tensor::contiguous(tensor.format, tensor.shape);
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const std::int64_t position = planted ? tensor.position(i) & (far - 1) : tensor.position(i);
      read.set(i, load_element(tensor.bytes.data() + position * tensor.width(), tensor.format));
    }
    other.inputs[name] = std::move(read);
  }
  right.run({call.signature, other, call.outputs, call.threads});
}

/// Two rows that lie 2^31 elements apart.
Case far_rows(const Signature& signature, Format storage) {
  Case input;
  input.op = signature.name, input.storage = storage, input.extents = {2, 8};
  Tensor x;
  x.format = storage, x.shape = {2, 8}, x.strides = {far, 1};
  x.bytes.resize(static_cast<std::size_t>((far + 8) * x.width()));
  for (std::int64_t i = 0; i < 16; ++i) x.set(i, static_cast<double>(i < 8 ? i : 2 * (15 - i)) / 4);
  input.inputs[signature.inputs[static_cast<std::size_t>(signature.input_with(Role::logits))].name] = std::move(x);
  return input;
}

std::vector<Mutation> all_mutations() {
  std::vector<Mutation> all = {
      detour("k ulp", "the largest entry is 64 ulp off (2 ulp where storage is narrow) for one value in 16", always, on_lines(nudge_some)),
      detour("zeroed row", "the last row stays zero", always,
             [](const Kernel& right, const Call& call, bool planted) {
               right.run(call);
               for (Tensor& tensor : call.outputs) {
                 const Lines lines_of(tensor);
                 if (!planted || lines_of.count == 0 || tensor.elements() < 2) continue;
                 const std::int64_t from = lines_of.count > 1 ? tensor.elements() - lines_of.length : tensor.elements() - 1;
                 for (std::int64_t e = from; e < tensor.elements(); ++e) tensor.set(e, 0);
               }
             }),
      detour("lane interference", "lanes 3 and 4 of every vector change places", always, on_lines(swap_lanes)),
      detour("remainder lanes", "the rest behind the last whole vector repeats that vector", always, on_lines(repeat_vector_before)),
      detour("early rounding", "results go through bf16", wide_storage,
             on_lines([](Tensor& tensor, std::int64_t first, std::int64_t length) {
               for (std::int64_t e = first; e < first + length; ++e) tensor.set(e, round_to(Format::bf16, tensor.get(e)));
             })),
      detour("read-modify-write through bf16", "a sum of two parts of which the first was stored in bf16", wide_storage,
             on_lines([](Tensor& tensor, std::int64_t first, std::int64_t length) {
               for (std::int64_t e = first; e < first + length; ++e)
                 if (std::isfinite(tensor.get(e))) tensor.set(e, by_parts(Format::bf16, tensor.get(e)));
             })),
      detour("read-modify-write through storage", "a sum of two parts of which the first was stored", narrow_storage, stored_by(by_parts)),
      detour("truncating store", "results are truncated to the storage format, not rounded", narrow_storage, stored_by(truncated)),
      remembering<Previous>("stale buffer", "the last row comes from the call before of the same shape", always, keep_last_row),
      remembering<Calls>("reduction order by the clock", "every second call differs by one ulp", always,
                         [](Calls& calls, const Kernel& right, const Call& call, bool planted) {
                           right.run(call);
                           if (calls.count++ % 2 && planted) one_ulp_more(call);
                         }),
      detour("reduction order by the threads", "with more than one thread one result differs by one ulp", always,
             [](const Kernel& right, const Call& call, bool planted) {
               right.run(call);
               if (planted && call.threads > 1) one_ulp_more(call);
             }),
      detour("dropped tail", "the logits behind the last whole vector are left out", with_logits, on_logits(drop_tail)),
      detour("wrong maximum", "the maximum is taken over the first vector of a row", with_logits, first_vector_maximum),
      detour("late maximum", "an online sum is not rescaled when a new maximum comes", with_logits, on_logits(forget_rescaling)),
      detour("early rounding of logits", "logits go through bf16", both(with_logits, wide_storage), on_logits(round_early)),
      detour("narrow accumulator", "the sum of exponentials is kept in bf16", divides_by_the_sum, eight_bit_sum),
      detour("NaN swallowed", "a NaN among the logits counts as -inf", with_logits, on_logits(lose_nan)),
      detour("guarded exp", "exp(max(x - max, -20))", with_logits, on_logits(guard_exp)),
      detour("upstream ignored", "every upstream gradient is taken for its default", has_vectors_of_upstream, ones_for_upstream),
      remembering<Plans>("cached plan", "strides of the first call of a shape serve for all later ones", always, cached_strides),
      detour("whole vector at the end", "a whole vector is stored where a part of one is left", always, whole_vector_at_the_end),
      detour("last element not written", "the last element of an output is left as it was", always, last_element_not_written),
      claim("claim: wider arithmetic", "the contract promises f64 arithmetic", [](const Signature&, const Kernel& right, Format storage) { return storage == Format::f32 && right.contract(storage).accumulator == Format::f32; },
            [](Contract& contract) { contract.accumulator = Format::f64; }),
  };
  Mutation wrap = detour("offset wrap at 2^31", "positions of elements are computed in 31 bits",
                         [](const Signature& signature, const Kernel&, Format storage) { return signature.name == "softmax" && storage == Format::e4m3; }, short_positions);
  wrap.only_case = far_rows;
  wrap.memory = std::uint64_t{12} << 30;  // the case, the copy that shows changed inputs, and those of a violation
  all.push_back(std::move(wrap));
  return all;
}

}  // namespace

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> all = all_mutations();
  return all;
}

}  // namespace sumzero
