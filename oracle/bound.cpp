#include "oracle/bound.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "reference/number/array.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

enum class Op { constant, scalar, array, exact, classes, height, height_over, add, multiply, divide, maximum, minimum, logarithm, relative, sum };

struct Node {
  Op op = Op::constant;
  double value = 0;          // constant, or the unit roundoff of `relative`
  std::size_t slot = 0;      // quantity index; for `height` the number of terms left out of n
  std::vector<std::size_t> children;
  bool per_entry = false;    // a value per class, else one per row
};

constexpr std::size_t block = 128;  // entries evaluated together: the buffers of all nodes stay in the first cache

/// log a above 1, or expm1(a u) <= t (1 + t) for t = a u <= 1; beyond that the relation is vacuous anyway.
double apply(const Node& node, double a) {
  if (node.op == Op::logarithm) return a > 1 ? std::log(a) : 0.0;
  const double t = a * node.value;
  return t <= 1 ? t * (1 + t) : std::expm1(t);
}

double apply(const Node& node, double a, double b) {
  switch (node.op) {
    case Op::add: return a + b;
    case Op::multiply: return a == 0 || b == 0 ? 0.0 : a * b;
    case Op::divide: return a / b;
    case Op::maximum: return a > b ? a : b;
    case Op::minimum: return a < b ? a : b;
    default: return a;
  }
}

void apply_each(const Node& node, const double* a, std::size_t count, double* to) {
  if (node.op == Op::relative) {
    bool small = true;
    for (std::size_t j = 0; j < count; ++j) {
      const double t = a[j] * node.value;
      small &= t <= 1;
      to[j] = t * (1 + t);
    }
    if (small) return;
  }
  for (std::size_t j = 0; j < count; ++j) to[j] = apply(node, a[j]);
}

/// to[j] = a(j) op b(j) for arrays or constants a and b; `to` may be either array.
template <class A, class B>
void apply_each(const Node& node, A a, B b, std::size_t count, double* to) {
  switch (node.op) {
    case Op::add: return each(count, [&](std::size_t j) { to[j] = a(j) + b(j); });
    case Op::multiply: return each(count, [&](std::size_t j) { to[j] = a(j) * b(j); });
    default: return each(count, [&](std::size_t j) { to[j] = apply(node, a(j), b(j)); });
  }
}

}  // namespace

struct Bound::Program {
  std::vector<Node> nodes;  // children before parents
  std::size_t root = 0, sum_root = 0, entries_root = 0;
  bool has_sum = false, has_entries = false;
  SummationTree summation;
  std::map<std::string, double> constants;
  std::map<std::string, std::size_t> named;
  const Signature* signature = nullptr;
  double unit = 0;
  bool per_entry_output = false;

  std::size_t push(Node node) {
    node.per_entry = node.op == Op::array || (node.op == Op::exact && per_entry_output);
    if (node.op != Op::sum)
      for (const std::size_t child : node.children) node.per_entry |= nodes[child].per_entry;
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  }

  std::size_t leaf(const std::string& leaf_name) {
    if (const auto found = named.find(leaf_name); found != named.end()) return found->second;
    if (const auto found = constants.find(leaf_name); found != constants.end())
      return push({Op::constant, found->second, 0, {}});
    if (leaf_name == "n") return push({Op::classes, 0, 0, {}});
    if (leaf_name == "h") return push({Op::height, 0, 1, {}});
    if (leaf_name == "h_n") return push({Op::height, 0, 0, {}});
    if (leaf_name == "exact") return push({Op::exact, 0, 0, {}});
    for (std::size_t i = 0; i < signature->quantities.size(); ++i)
      if (signature->quantities[i] == leaf_name) return push({Op::scalar, 0, i, {}});
    for (std::size_t i = 0; i < signature->arrays.size(); ++i)
      if (signature->arrays[i] == leaf_name) return push({Op::array, 0, i, {}});
    throw std::logic_error("bound of " + signature->name + ": unknown name '" + leaf_name + "'");
  }

  std::size_t build(const json& tree) {
    if (tree.is_number()) return push({Op::constant, tree.get<double>(), 0, {}});
    if (tree.is_string()) return leaf(tree.get<std::string>());
    if (!tree.is_array() || tree.empty() || !tree[0].is_string())
      throw std::logic_error("bound of " + signature->name + ": malformed node " + tree.dump());
    static const std::map<std::string, Op> operations = {{"+", Op::add},     {"*", Op::multiply}, {"/", Op::divide},
                                                         {"max", Op::maximum}, {"min", Op::minimum}, {"log", Op::logarithm},
                                                         {"rel", Op::relative},  {"sum", Op::sum},
                                                         {"height", Op::height_over}};
    const auto found = operations.find(tree[0].get<std::string>());
    if (found == operations.end())
      throw std::logic_error("bound of " + signature->name + ": unknown operation " + tree[0].dump());
    Node node;
    node.op = found->second;
    std::size_t count = tree.size();
    if (node.op == Op::relative) {
      node.value = unit;
      if (tree.size() == 3) node.value = constants.at(tree[2].get<std::string>()), count = 2;
    }
    for (std::size_t i = 1; i < count; ++i) node.children.push_back(build(tree[i]));
    return push(std::move(node));
  }

  struct Inputs {
    std::size_t n;
    const std::vector<double>& scalars;
    const std::vector<std::vector<double>>& arrays;
    const double* exact;
  };
  void evaluate(std::size_t root, const Inputs& in, const std::vector<double>& exact, const Store& store, std::vector<double>& result) const;

  /// Values of all nodes: one per row, or the entries of the current block.
  struct Memory {
    std::vector<double> scalar;
    std::vector<const double*> entries;
    std::vector<double> buffers;
    std::vector<char> done;
  };

  Memory& memory() const {
    Memory& m = thread_scratch<Memory>();
    m.scalar.resize(nodes.size());
    m.entries.resize(nodes.size());
    m.buffers.resize(nodes.size() * block);
    m.done.assign(nodes.size(), 0);
    return m;
  }

  /// The value of a node that does not vary within the row.
  double scalar(std::size_t index, const Inputs& in, Memory& m) const {
    if (m.done[index]) return m.scalar[index];
    const Node& node = nodes[index];
    double value = 0;
    switch (node.op) {
      case Op::constant: value = node.value; break;
      case Op::classes: value = static_cast<double>(in.n); break;
      case Op::height: value = summation.height(static_cast<double>(in.n - node.slot)); break;
      case Op::height_over: value = summation.height(scalar(node.children[0], in, m)); break;
      case Op::scalar: value = in.scalars[node.slot]; break;
      case Op::exact: value = in.exact[0]; break;
      case Op::sum: value = sum(node.children[0], in, m); break;
      case Op::relative:
      case Op::logarithm: value = apply(node, scalar(node.children[0], in, m)); break;
      default:
        value = scalar(node.children[0], in, m);
        for (std::size_t c = 1; c < node.children.size(); ++c) value = apply(node, value, scalar(node.children[c], in, m));
    }
    m.done[index] = 1;
    return m.scalar[index] = value;
  }

  double sum(std::size_t index, const Inputs& in, Memory& m) const {
    double total = 0;
    if (!nodes[index].per_entry) {
      total = static_cast<double>(in.n) * scalar(index, in, m);
    } else {
      prepare(index, in, m);
      for (std::size_t begin = 0; begin < in.n; begin += block) {
        const std::size_t count = std::min(block, in.n - begin);
        const double* values = entries(index, in, m, begin, count);
        for (std::size_t j = 0; j < count; ++j) total += values[j];
      }
    }
    return total * (1 + 0x1p-20);  // n additions in double, n 2^-53 < 2^-20
  }

  /// Evaluates what a node needs of the whole row, before the first block of it.
  void prepare(std::size_t index, const Inputs& in, Memory& m) const {
    if (!nodes[index].per_entry) scalar(index, in, m);
    else for (const std::size_t child : nodes[index].children) prepare(child, in, m);
  }

  /// Entries [begin, begin + count) of a prepared node. A node that several others name is evaluated once a block.
  const double* entries(std::size_t index, const Inputs& in, Memory& m, std::size_t begin, std::size_t count) const {
    for (std::size_t i = 0; i <= index; ++i) m.done[i] &= !nodes[i].per_entry;
    return entries_of(index, in, m, begin, count);
  }

  const double* entries_of(std::size_t index, const Inputs& in, Memory& m, std::size_t begin, std::size_t count) const {
    if (m.done[index]) return m.entries[index];
    const Node& node = nodes[index];
    double* to = &m.buffers[index * block];
    m.done[index] = 1;
    m.entries[index] = to;
    if (node.op == Op::array) return m.entries[index] = in.arrays[node.slot].data() + begin;
    if (node.op == Op::exact) return m.entries[index] = in.exact + begin;
    if (node.op == Op::relative || node.op == Op::logarithm) {
      apply_each(node, entries_of(node.children[0], in, m, begin, count), count, to);
      return to;
    }
    const auto array = [](const double* values) { return [values](std::size_t j) { return values[j]; }; };
    const auto constant = [](double value) { return [value](std::size_t) { return value; }; };
    if (node.op == Op::divide) {
      const std::size_t above = node.children[0], below = node.children[1];
      if (!nodes[below].per_entry) apply_each(node, array(entries_of(above, in, m, begin, count)), constant(scalar(below, in, m)), count, to);
      else if (!nodes[above].per_entry) apply_each(node, constant(scalar(above, in, m)), array(entries_of(below, in, m, begin, count)), count, to);
      else apply_each(node, array(entries_of(above, in, m, begin, count)), array(entries_of(below, in, m, begin, count)), count, to);
      return to;
    }
    // The others commute: constants first, then one pass per array.
    double fixed = 0;
    bool any_fixed = false;
    const double* result = nullptr;
    for (const std::size_t child : node.children) {
      if (nodes[child].per_entry) continue;
      const double value = scalar(child, in, m);
      fixed = any_fixed ? apply(node, fixed, value) : value;
      any_fixed = true;
    }
    for (const std::size_t child : node.children) {
      if (!nodes[child].per_entry) continue;
      const double* values = entries_of(child, in, m, begin, count);
      if (!result && !any_fixed) {
        result = values;
        continue;
      }
      if (!result) apply_each(node, array(values), constant(fixed), count, to);
      else apply_each(node, array(result), array(values), count, to);
      result = to;
    }
    return m.entries[index] = result;
  }

  // Every operation is monotone on non-negative numbers and rounds once, functions twice: the relative loss of the whole
  // tree is below 2 nodes u.
  double outward() const { return 1 + static_cast<double>(nodes.size() + 4) * 0x1p-51; }
};

Bound::Bound() = default;
Bound::Bound(Bound&&) noexcept = default;
Bound& Bound::operator=(Bound&&) noexcept = default;
Bound::~Bound() = default;

bool Bound::has_sum_bound() const { return program_->has_sum; }

bool Bound::has_sum_entries() const { return program_->has_entries; }

void Bound::evaluate(std::size_t n, const std::vector<double>& scalars, const std::vector<std::vector<double>>& arrays,
                     const std::vector<double>& exact, const Store& store, std::vector<double>& result) const {
  program_->evaluate(program_->root, {n, scalars, arrays, exact.data()}, exact, store, result);
}

void Bound::evaluate_sum_entries(std::size_t n, const std::vector<double>& scalars, const std::vector<std::vector<double>>& arrays,
                                 const std::vector<double>& exact, const Store& store, std::vector<double>& result) const {
  program_->evaluate(program_->entries_root, {n, scalars, arrays, exact.data()}, exact, store, result);
}

void Bound::Program::evaluate(std::size_t root, const Inputs& in, const std::vector<double>& exact, const Store& store,
                              std::vector<double>& result) const {
  const Program& program = *this;
  const double outward = program.outward();
  result.resize(exact.size());
  on_widest_vectors([&] {
    Program::Memory& m = program.memory();
    const auto stored = [&](double bound, double magnitude) {
      const double stored = magnitude < store.largest ? magnitude : store.largest;
      return (bound * outward * store.of_bound + stored * store.of_exact + store.constant) * (1 + 0x1p-50);
    };
    if (!program.nodes[root].per_entry) {
      const double bound = program.scalar(root, in, m);
      for (std::size_t j = 0; j < exact.size(); ++j) result[j] = stored(bound, exact[j]);
      return;
    }
    program.prepare(root, in, m);
    for (std::size_t begin = 0; begin < exact.size(); begin += block) {
      const std::size_t count = std::min(block, exact.size() - begin);
      const double* bound = program.entries(root, in, m, begin, count);
      const double* magnitude = exact.data() + begin;
      double* to = result.data() + begin;
      each(count, [&](std::size_t j) { to[j] = stored(bound[j], magnitude[j]); });
    }
  });
}

double Bound::evaluate_sum(std::size_t n, const std::vector<double>& scalars, double total) const {
  static const std::vector<std::vector<double>> no_arrays;
  const Program::Inputs in{n, scalars, no_arrays, &total};
  return program_->scalar(program_->sum_root, in, program_->memory()) * program_->outward();
}

Bound find_bound(const Signature& signature, int output, const Contract& contract, Format storage) {
  const std::string& output_name = signature.outputs[static_cast<std::size_t>(output)].name;
  for (const EmbeddedBound& file : embedded_bounds()) {
    const json document = json::parse(file.text);
    const auto& operators = document.at("operators");
    if (std::find(operators.begin(), operators.end(), signature.name) == operators.end()) continue;
    const auto found = document.at("outputs").find(output_name);
    if (found == document.at("outputs").end()) continue;
    Bound bound;
    bound.theorem = found->at("theorem");
    bound.kind = contract.kind == "declared" ? contract.kind : found->value("kind", "derived");
    bound.file = file.name;
    bound.program_ = std::make_unique<Bound::Program>();
    Bound::Program& program = *bound.program_;
    program.signature = &signature;
    program.summation = contract.summation;
    program.unit = unit_roundoff(contract.accumulator);
    const Shape shape = signature.outputs[static_cast<std::size_t>(output)].shape;
    program.per_entry_output = shape != Shape::per_row && shape != Shape::reduced;
    const Format out = element_format(signature.outputs[static_cast<std::size_t>(output)].element, storage);
    program.constants = {
        {"u", program.unit},
        {"eta", contract.flush_to_zero ? smallest_normal(contract.accumulator) : smallest_subnormal(contract.accumulator)},
        {"u_out", is_floating(out) ? unit_roundoff(out) : 0.0},
        {"eta_out", is_floating(out) ? smallest_subnormal(out) : 0.0},
        {"c_e", contract.exp_error},
        {"c_l", contract.log_error},
        {"c_x", contract.expm1_error},
        {"shift", contract.compensated_shift ? 0.0 : 1.0},
        {"reciprocal", contract.reciprocal ? 1.0 : 0.0},
        {"pivoted", contract.pivoted ? 1.0 : 0.0},
        {"unpivoted", contract.pivoted ? 0.0 : 1.0},
        {"tile", contract.key_tile > 0 ? contract.key_tile : 0x1p62}};
    for (const json* lets : {document.contains("let") ? &document["let"] : nullptr,
                             found->contains("let") ? &(*found)["let"] : nullptr}) {
      if (!lets) continue;
      for (const auto& definition : *lets) program.named[definition.at(0)] = program.build(definition.at(1));
    }
    program.root = program.build(found->at("bound"));
    if (found->contains("sum_entries")) {
      program.entries_root = program.build((*found)["sum_entries"]);
      program.has_entries = true;
    }
    if (found->contains("sum_bound")) {
      program.sum_root = program.build((*found)["sum_bound"]);
      program.has_sum = true;
    }
    return bound;
  }
  throw std::logic_error("no bound for output " + output_name + " of " + signature.name + " in oracle/bounds");
}

}  // namespace sumzero
