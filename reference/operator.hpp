// The vocabulary of the house: what an operator is, how a kernel is reached, and where both are registered.
//
// fast/ includes this header and no other of reference/: a kernel never sees a reference formula.
#pragma once

#ifdef __FAST_MATH__
#error "-ffast-math (or -Ofast) voids every error bound; compile without it"
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/case.hpp"
#include "reference/format.hpp"

namespace sumzero {

// ---------------------------------------------------------------------------------------------------------
// Signatures

/// Which format an element has: the storage format of the case, the accumulator that belongs to it, a flag or
/// a class index.
enum class Element : std::uint8_t { storage, accumulator, boolean, index };

/// Extents of a case. An operator on rows has {rows, classes}; every row is a problem of its own. Attention has {batch, heads,
/// kv_heads, queries, keys, head_size, value_size}: query head h reads key-value head h / (heads / kv_heads), and all heads that
/// read one key-value head of one batch entry form a problem.
enum class Axes : std::uint8_t { rows, attention };
std::span<const std::string_view> axis_names(Axes axes);
namespace axis {
constexpr std::size_t rows = 0, classes = 1;
constexpr std::size_t batch = 0, heads = 1, kv_heads = 2, queries = 3, keys = 4, head_size = 5, value_size = 6;
}

/// Shape of a tensor over the axes of its operator. `reduced` is [] for a reducing loss and [rows] otherwise.
enum class Shape : std::uint8_t {
  row,        ///< [rows, classes]
  per_row,    ///< [rows]
  classes,    ///< [classes]
  reduced,
  query,      ///< [batch, heads, queries, head_size]
  key,        ///< [batch, kv_heads, keys, head_size]
  value,      ///< [batch, kv_heads, keys, value_size]
  attended,   ///< [batch, heads, queries, value_size]
  scores,     ///< [batch, heads, queries, keys]
  per_query   ///< [batch, heads, queries]
};
/// Axes of a shape, as indices into the extents; [rows] for `reduced`.
std::span<const std::size_t> axes_of(Shape shape);

/// What the numbers of an input mean; generators and strata are derived from it.
enum class Role : std::uint8_t {
  logits,          ///< scores that a softmax is taken of
  teacher_logits,  ///< second logit vector, compared with the first
  bias,            ///< added to scaled logits; may hold -inf
  mask,            ///< true keeps an entry
  label,           ///< class index
  probabilities,   ///< non-negative target distribution
  weights,         ///< non-negative class weights
  query, key, value,  ///< operands of attention
  partial_output,  ///< attention over a part of the keys
  partial_lse,     ///< its log-sum-exp; -inf where the part is empty
  upstream,        ///< cotangent of an output
  state_maximum,   ///< m of a (m, r) state
  state_tail,      ///< r of a (m, r) state
  state_empty      ///< flag: the state saw no element
};

struct InputSpec {
  std::string name;
  Role role;
  Shape shape;
  Element element = Element::storage;
  bool optional = false;
  /// Output index whose cotangent this is, for Role::upstream.
  int upstream_of = -1;
};

/// Exact properties of an output, as bits; the oracle binds its checks to them.
enum Mark : std::uint32_t {
  zero_sum = 1u << 0,         ///< sums to zero over the classes (attention: the keys) in exact arithmetic
  sums_to_one = 1u << 1,      ///< a probability vector
  non_negative = 1u << 2,     ///< never below zero, not even by rounding
  at_most_zero = 1u << 3,     ///< never above zero
  at_most_one = 1u << 4,
  monotone = 1u << 5,         ///< ordered like the logits of the row
  ties = 1u << 6,             ///< equal logits give equal entries (for a gradient: if its upstream agrees too)
  shift_invariant = 1u << 7,  ///< bitwise unchanged when one constant is added exactly to all logits
  linear_upstream = 1u << 8,  ///< scales exactly with powers of two of the upstream
  exact_zero = 1u << 10,      ///< a row that is zero in exact arithmetic comes out as zeros, bit for bit
  negative_only_at_target = 1u << 9,  ///< hard-label gradient: only the target's entry is below zero
};

struct OutputSpec {
  std::string name;
  Shape shape;
  Element element = Element::storage;
  std::uint32_t marks = 0;
  int gradient_of = -1;  ///< index of the input that this is the gradient of; -1 for a value
};

struct AttributeSpec {
  std::string name;
  double default_value;
  double minimum, maximum;          ///< accepted closed range
  bool exclusive_minimum = false;   ///< the range excludes its lower end
  std::vector<std::string> choices; ///< names when the attribute is an enumeration
};

/// What an operator takes and gives. Order is meaningful: kernels see inputs, outputs and attributes by index.
struct Signature {
  std::string name;
  std::string summary;                 ///< one line for `sumzero list`
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  std::vector<AttributeSpec> attributes;
  std::vector<std::string> quantities; ///< scalars of a row that bounds may name
  std::vector<std::string> arrays;     ///< per-entry quantities that bounds may name; per class for operators on rows
  Axes axes = Axes::rows;

  int input(std::string_view name) const;      ///< index, or -1
  int output(std::string_view name) const;     ///< index, or -1
  int attribute(std::string_view name) const;  ///< index, or -1
  int input_with(Role role) const;             ///< first input with that role, or -1
  bool reduces() const { return attribute("reduction") >= 0; }
};

/// Choices of the `reduction` attribute. mean divides by the total weight of the kept rows (rows without a
/// label: by the number of rows, which libraries call batchmean).
enum class Reduction : std::uint8_t { none, sum, mean };
AttributeSpec reduction_attribute(Reduction default_value);
/// `inf_policy`: what a row with a +inf logit gives: NaN everywhere, or the limit (one-hot).
AttributeSpec inf_policy_attribute();
/// `masked_policy`: what a row without a live entry gives: NaN everywhere, or zeros.
AttributeSpec masked_policy_attribute();

/// Attribute values in signature order, defaults filled in.
std::vector<double> attribute_values(const Signature& signature, const Case& input);
Reduction reduction_of(const Signature& signature, const std::vector<double>& attributes);

/// Format and shape that a tensor of this spec has in this case.
Format element_format(Element element, Format storage);
std::vector<std::int64_t> tensor_shape(Shape shape, const Case& input, Reduction reduction);

/// Number of independent problems of a case, and how many entries of a tensor belong to one of them.
std::int64_t problem_count(const Signature& signature, const Case& input);
std::int64_t part_elements(Shape shape, const Case& input);
/// Extent of the axis that a softmax normalises over: classes or keys.
std::int64_t normalised_extent(const Signature& signature, const Case& input);

/// The part of a tensor that belongs to one problem; up to three axes, in row-major order.
struct Part {
  const std::byte* first;
  std::array<std::int64_t, 3> counts{1, 1, 1}, strides{0, 0, 0};  ///< strides in elements
};
Part part_of(const Tensor& tensor, Shape shape, const Case& input, std::int64_t problem);
void load_part(const Part& part, Format format, float* to);
void load_part(const Part& part, Format format, double* to);
void store_part(const Part& part, Format format, const float* from);
void store_part(const Part& part, Format format, const double* from);

/// The sums over the normalised axis in the part of a tensor: entry i of sum s lies at s * step_sum + i * step.
struct Sums {
  std::int64_t count, length, step_sum, step;
};
Sums sums_of(Shape shape, const Case& input);

/// The problem that an element of a tensor (in row-major order) belongs to, and its entry in the part of that problem.
struct ProblemEntry {
  std::int64_t problem, entry;
};
ProblemEntry problem_entry(Shape shape, const Case& input, std::int64_t element);
/// Place of an entry for people, "gk[0, 1, 5, 3]"; `entry` counts inside the part of the problem.
std::string place_text(const std::string& tensor, Shape shape, const Case& input, std::int64_t problem, std::int64_t entry);
/// What is summed, for people: "row 3 of gx", "gk[0, 1, :, 3]".
std::string sum_text(const std::string& tensor, Shape shape, const Case& input, std::int64_t problem, std::int64_t sum);

/// Checks a case against its signature: names, formats, shapes, strides inside the storage, attribute ranges,
/// labels. Throws InvalidInput.
void validate(const Signature& signature, const Case& input);

/// Position of row `row` of an input: pointer to its first element and the element stride along the classes.
struct RowAddress {
  const std::byte* first;
  std::int64_t stride;
  std::int64_t count;  ///< classes, or 1 for a per-row value
};
RowAddress row_address(const Tensor& tensor, Shape shape, std::int64_t row);

/// Label of a row, and whether the row counts (its label is not `ignore_index`).
std::int64_t label_of(const Signature& signature, const Case& input, std::int64_t row);
bool row_is_kept(const Signature& signature, const std::vector<double>& attributes, std::int64_t label);

/// Denominator of the mean over rows: the kept rows' class weights where the operator has labels and weights,
/// else the number of kept rows. Sum is any number type built from double.
template <class Sum>
Sum mean_denominator(const Signature& signature, const Case& input, const std::vector<double>& attributes) {
  const int label_index = signature.input_with(Role::label);
  const int weight_index = signature.input_with(Role::weights);
  const Tensor* weights = nullptr;
  if (label_index >= 0 && weight_index >= 0) {
    const auto found = input.inputs.find(signature.inputs[static_cast<std::size_t>(weight_index)].name);
    if (found != input.inputs.end()) weights = &found->second;
  }
  Sum total(0.0);
  for (std::int64_t row = 0; row < input.extents[0]; ++row) {
    const std::int64_t label = label_of(signature, input, row);
    if (!row_is_kept(signature, attributes, label)) continue;
    total = total + Sum(weights ? weights->get(label) : 1.0);
  }
  return total;
}

// ---------------------------------------------------------------------------------------------------------
// Kernels

constexpr std::size_t max_inputs = 8, max_outputs = 8;

/// One row as a kernel sees it: contiguous, aligned like T, in the accumulator type T (double for f64
/// storage, float for every narrower one). Conversion, strides and scattering happen outside. For attention a problem takes
/// the place of a row: every tensor is the contiguous part of its problem, without the batch axis and with the group's heads.
template <class T>
struct Row {
  std::size_t n = 0;                          ///< classes or keys, at least 1
  std::array<const T*, max_inputs> in{};      ///< by signature index: n values, or one per-row value; flags are 0 or
                                              ///< 1; null when an optional input is absent
  std::array<T*, max_outputs> out{};          ///< by signature index; null when not requested
  const double* attribute = nullptr;          ///< by signature index
  std::int64_t label = -1;                    ///< class index where the operator has labels; the row is kept
  double factor = 1;                          ///< losses: upstream over the denominator of the reduction; gradients are
                                              ///< multiplied by it, the row's loss is not
  Format storage = Format::f32;               ///< format that inputs had and outputs will be rounded to
  const std::int64_t* extents = nullptr;      ///< of the case, by axis
};

template <class T>
using RowFunction = void (*)(const Row<T>&);

/// How a kernel adds numbers up: it determines the height h of the summation tree over n terms.
struct SummationTree {
  enum class Kind : std::uint8_t { unknown, sequential, pairwise, lanes, compensated } kind = Kind::unknown;
  int width = 1;         ///< lanes: number of independent accumulators
  int flush_every = 0;   ///< lanes: additions after which an accumulator is flushed into a pairwise cascade; 0: never
  /// Height in additions of the tree over `terms` terms. unknown counts as sequential, the worst case.
  double height(double terms) const;
};

/// What a kernel promises. Bounds are evaluated from it; a kernel is judged by its own contract.
struct Contract {
  Format accumulator = Format::f32;   ///< arithmetic of the kernel, also when storage is narrower
  double exp_error = 1, log_error = 1, expm1_error = 1;  ///< relative errors in units of u of the accumulator
  SummationTree summation;
  bool flush_to_zero = false;         ///< subnormal results of the accumulator may become zero
  bool compensated_shift = false;     ///< x - max enters the exponential without a rounding error
  bool reciprocal = false;            ///< divides by multiplying with a rounded reciprocal
  int key_tile = 0;                   ///< attention: keys per tile of an online softmax; 0: all at once
  bool pivoted = false;               ///< attention: go . v enters as its difference from the key of the largest logit
  bool deterministic = true;
  bool monotone = true;               ///< its exponential is monotone, so order is kept bit for bit
  bool policies = true;               ///< honours non-default policies for special rows; else such cases are refused
  bool stores_intermediates = false;  ///< forward results are rounded to the storage format before the backward reads them
  std::string kind = "derived";       ///< proved, derived or declared: where the bound's constants come from
  std::string note;
};

/// The first special-value policy that the case sets to another choice than its default; empty if there is none. `except`:
/// one that somebody else honours.
std::string_view changed_policy(const Case& input, std::string_view except = {});

/// Buffers of a kernel call. Outputs have the format and shape of the signature; an output that the kernel does
/// not offer has no storage.
struct Call {
  const Signature& signature;
  const Case& input;
  std::vector<Tensor>& outputs;  ///< by signature index
  int threads = 1;
};

/// Thrown by a kernel that declines a case outside its contract (verdict `refused`).
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A kernel of one operator, as every door presents it.
class Kernel {
 public:
  virtual ~Kernel() = default;
  std::string op, name, summary;
  std::vector<std::string> aliases;            ///< further names; `textbook.pytorch` is one per operator
  std::vector<std::string> outputs;            ///< names of the outputs it offers; empty: all
  virtual bool supports(Format storage) const = 0;
  virtual Contract contract(Format storage) const = 0;
  virtual void run(const Call& call) const = 0;
  bool offers(std::string_view output) const;
};

/// Declares a kernel written for one row. A null function means that the accumulator type is not supported.
struct RowKernel {
  std::string op, name, summary;
  RowFunction<float> f32 = nullptr;
  RowFunction<double> f64 = nullptr;
  Contract contract_f32, contract_f64;
  std::vector<std::string> aliases = {};
  std::vector<std::string> outputs = {};
  std::optional<Format> only = std::nullopt;   ///< restrict to one storage format
};

/// Wraps a row kernel into a Kernel: gathers, converts, runs rows on OpenMP threads, reduces, scatters.
/// The loss of a reducing case is summed in double precision, pairwise in row order.
std::unique_ptr<Kernel> make_kernel(RowKernel kernel);

// ---------------------------------------------------------------------------------------------------------
// Registry

class OperatorReference;  // reference/evaluate.hpp

/// Everything that registered itself before main. Lookups throw InvalidInput with the known names.
class Registry {
 public:
  static Registry& global();
  void add(std::unique_ptr<OperatorReference> reference);
  void add(std::unique_ptr<Kernel> kernel);
  const OperatorReference& operator_named(std::string_view name) const;
  const Kernel& kernel_named(std::string_view op, std::string_view name, Format storage) const;
  std::vector<const OperatorReference*> operators() const;             ///< sorted by name
  std::vector<const Kernel*> kernels(std::string_view op = {}) const;  ///< sorted by operator and name
  ~Registry();

 private:
  Registry();
  struct Store;
  std::unique_ptr<Store> store_;
};

/// Registers at start-up: `static const sumzero::Registered mine{sumzero::RowKernel{...}};`
struct Registered {
  explicit Registered(RowKernel kernel) { Registry::global().add(make_kernel(std::move(kernel))); }
  explicit Registered(std::unique_ptr<Kernel> kernel) { Registry::global().add(std::move(kernel)); }
};

}  // namespace sumzero
