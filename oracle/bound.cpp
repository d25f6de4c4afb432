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

  /// `rows` rows of n entries, one behind the other; scalars slot by slot.
  struct Inputs {
    std::size_t n, rows;
    const double* scalars;
    const std::vector<std::vector<double>>& arrays;
    const double* exact;
  };
  void evaluate(std::size_t root, const Inputs& in, std::size_t entries, const Store& store, std::vector<double>& result) const;

  /// Values of all nodes: for the rows of the current group, and for the entries of the current block of them. A group is
  /// one row, or as many as fill a block.
  struct Memory {
    std::size_t first = 0, group = 1;
    std::vector<double> row_buffers, buffers;
    std::vector<const double*> entries;
    std::vector<char> done;
  };

  Memory& memory() const {
    Memory& m = thread_scratch<Memory>();
    m.entries.resize(nodes.size());
    m.row_buffers.resize(nodes.size() * block);
    m.buffers.resize(nodes.size() * block);
    return m;
  }
  void start_group(const Inputs& in, std::size_t first, Memory& m) const {
    m.first = first;
    m.group = std::min(std::max<std::size_t>(1, block / in.n), in.rows - first);
    m.done.assign(nodes.size(), 0);
  }

  /// The values of a node that does not vary within a row, for the rows of the group.
  const double* rows_of(std::size_t index, const Inputs& in, Memory& m) const {
    double* to = &m.row_buffers[index * block];
    if (m.done[index]) return to;
    m.done[index] = 1;
    const Node& node = nodes[index];
    const std::size_t rows = m.group;
    switch (node.op) {
      case Op::constant: std::fill_n(to, rows, node.value); break;
      case Op::classes: std::fill_n(to, rows, static_cast<double>(in.n)); break;
      case Op::height: std::fill_n(to, rows, summation.height(static_cast<double>(in.n - node.slot))); break;
      case Op::height_over: {
        const double* terms = rows_of(node.children[0], in, m);
        for (std::size_t r = 0; r < rows; ++r) to[r] = r > 0 && terms[r] == terms[r - 1] ? to[r - 1] : summation.height(terms[r]);
        break;
      }
      case Op::scalar: std::copy_n(in.scalars + node.slot * in.rows + m.first, rows, to); break;
      case Op::exact: std::copy_n(in.exact + m.first, rows, to); break;
      case Op::sum: sums(node.children[0], in, m, to); break;
      case Op::relative:
      case Op::logarithm: apply_each(node, rows_of(node.children[0], in, m), rows, to); break;
      default: {
        std::copy_n(rows_of(node.children[0], in, m), rows, to);
        for (std::size_t c = 1; c < node.children.size(); ++c) {
          const double* other = rows_of(node.children[c], in, m);
          for (std::size_t r = 0; r < rows; ++r) to[r] = apply(node, to[r], other[r]);
        }
      }
    }
    return to;
  }

  void sums(std::size_t index, const Inputs& in, Memory& m, double* to) const {
    const std::size_t rows = m.group;
    if (!nodes[index].per_entry) {
      const double* values = rows_of(index, in, m);
      for (std::size_t r = 0; r < rows; ++r) to[r] = static_cast<double>(in.n) * values[r];
    } else {
      prepare(index, in, m);
      std::fill_n(to, rows, 0.0);
      for (std::size_t begin = 0; begin < rows * in.n; begin += block) {
        const std::size_t count = std::min(block, rows * in.n - begin);
        const double* values = entries(index, in, m, begin, count);
        if (rows == 1) for (std::size_t j = 0; j < count; ++j) to[0] += values[j];
        else for (std::size_t j = 0; j < count; ++j) to[j / in.n] += values[j];
      }
    }
    for (std::size_t r = 0; r < rows; ++r) to[r] *= 1 + 0x1p-20;  // n additions in double, n 2^-53 < 2^-20
  }

  /// Evaluates what a node needs of whole rows, before the first block of them.
  void prepare(std::size_t index, const Inputs& in, Memory& m) const {
    if (!nodes[index].per_entry) rows_of(index, in, m);
    else for (const std::size_t child : nodes[index].children) prepare(child, in, m);
  }

  /// Entries [begin, begin + count) of the group, of a prepared node. A node that several others name is evaluated once a block.
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
    if (node.op == Op::array) return m.entries[index] = in.arrays[node.slot].data() + m.first * in.n + begin;
    if (node.op == Op::exact) return m.entries[index] = in.exact + m.first * in.n + begin;
    if (node.op == Op::relative || node.op == Op::logarithm) {
      apply_each(node, entries_of(node.children[0], in, m, begin, count), count, to);
      return to;
    }
    const auto array = [](const double* values) { return [values](std::size_t j) { return values[j]; }; };
    const auto constant = [](double value) { return [value](std::size_t) { return value; }; };
    // A value for every entry of a row, from the value of the row; a group of several rows is one block.
    const auto spread = [&](const double* rows) {
      for (std::size_t r = 0, j = 0; r < m.group; ++r)
        for (const std::size_t end = j + in.n; j < end; ++j) to[j] = rows[r];
    };
    if (node.op == Op::divide) {
      const std::size_t above = node.children[0], below = node.children[1];
      const double *a = nodes[above].per_entry ? entries_of(above, in, m, begin, count) : rows_of(above, in, m),
                   *b = nodes[below].per_entry ? entries_of(below, in, m, begin, count) : rows_of(below, in, m);
      if (nodes[above].per_entry == nodes[below].per_entry) apply_each(node, array(a), array(b), count, to);
      else if (m.group == 1 && nodes[above].per_entry) apply_each(node, array(a), constant(b[0]), count, to);
      else if (m.group == 1) apply_each(node, constant(a[0]), array(b), count, to);
      else if (nodes[above].per_entry) spread(b), apply_each(node, array(a), array(to), count, to);
      else spread(a), apply_each(node, array(to), array(b), count, to);
      return to;
    }
    // The others commute: what does not vary first, then one pass per array.
    double fixed[block];
    bool any_fixed = false;
    const double* result = nullptr;
    for (const std::size_t child : node.children) {
      if (nodes[child].per_entry) continue;
      const double* values = rows_of(child, in, m);
      for (std::size_t r = 0; r < m.group; ++r) fixed[r] = any_fixed ? apply(node, fixed[r], values[r]) : values[r];
      any_fixed = true;
    }
    if (any_fixed && m.group > 1) spread(fixed), result = to;
    for (const std::size_t child : node.children) {
      if (!nodes[child].per_entry) continue;
      const double* values = entries_of(child, in, m, begin, count);
      if (!result && !any_fixed) {
        result = values;
        continue;
      }
      if (!result) apply_each(node, array(values), constant(fixed[0]), count, to);
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

void Bound::evaluate(const Rows& rows, const Store& store, std::vector<double>& result) const {
  program_->evaluate(program_->root, {rows.n, rows.count, rows.scalars.data(), rows.arrays, rows.exact.data()}, rows.exact.size(), store, result);
}

void Bound::evaluate_sum_entries(const Rows& rows, const Store& store, std::vector<double>& result) const {
  program_->evaluate(program_->entries_root, {rows.n, rows.count, rows.scalars.data(), rows.arrays, rows.exact.data()}, rows.exact.size(), store, result);
}

void Bound::Program::evaluate(std::size_t root, const Inputs& in, std::size_t entries, const Store& store, std::vector<double>& result) const {
  const Program& program = *this;
  const double outward = program.outward();
  const std::size_t per_row = entries / in.rows;
  result.resize(entries);
  on_widest_vectors([&] {
    Program::Memory& m = program.memory();
    const auto stored = [&](double bound, double magnitude) {
      const double stored = magnitude < store.largest ? magnitude : store.largest;
      return (bound * outward * store.of_bound + stored * store.of_exact + store.constant) * (1 + 0x1p-50);
    };
    for (std::size_t first = 0; first < in.rows; first += m.group) {
      program.start_group(in, first, m);
      const double* magnitude = in.exact + first * per_row;
      double* to = result.data() + first * per_row;
      if (!program.nodes[root].per_entry) {
        const double* bound = program.rows_of(root, in, m);
        for (std::size_t r = 0; r < m.group; ++r)
          for (std::size_t j = r * per_row; j < (r + 1) * per_row; ++j) to[j] = stored(bound[r], magnitude[j]);
        continue;
      }
      program.prepare(root, in, m);
      for (std::size_t begin = 0; begin < m.group * per_row; begin += block) {
        const std::size_t count = std::min(block, m.group * per_row - begin);
        const double* bound = program.entries(root, in, m, begin, count);
        each(count, [&](std::size_t j) { to[begin + j] = stored(bound[j], magnitude[begin + j]); });
      }
    }
  });
}

void Bound::evaluate_sums(const Rows& rows, std::vector<double>& result) const {
  const Program::Inputs in{rows.n, rows.count, rows.scalars.data(), rows.arrays, rows.exact.data()};
  const double outward = program_->outward();
  Program::Memory& m = program_->memory();
  result.resize(rows.count);
  for (std::size_t first = 0; first < rows.count; first += m.group) {
    program_->start_group(in, first, m);
    const double* sums = program_->rows_of(program_->sum_root, in, m);
    for (std::size_t r = 0; r < m.group; ++r) result[first + r] = sums[r] * outward;
  }
}

double Bound::sum_bound(std::size_t n, const std::vector<double>& scalars, double total) const {
  static const std::vector<std::vector<double>> no_arrays;
  std::vector<double> result;
  evaluate_sums({n, scalars, no_arrays, {total}}, result);
  return result[0];
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
