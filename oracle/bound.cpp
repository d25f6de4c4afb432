#include "oracle/bound.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace sumzero {
namespace {

using nlohmann::json;

enum class Op { constant, scalar, array, exact, classes, height, add, multiply, divide, maximum, minimum, logarithm, relative, sum };

struct Node {
  Op op = Op::constant;
  double value = 0;          // constant, or the unit roundoff of `relative`
  std::size_t slot = 0;      // quantity index; for `height` the number of terms left out of n
  std::vector<std::size_t> children;
};

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

}  // namespace

struct Bound::Program {
  std::vector<Node> nodes;  // children before parents
  std::size_t root = 0, sum_root = 0;
  bool has_sum = false;
  SummationTree summation;
  std::map<std::string, double> constants;
  std::map<std::string, std::size_t> named;
  const Signature* signature = nullptr;
  double unit = 0;

  std::size_t push(Node node) {
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
                                                         {"rel", Op::relative},  {"sum", Op::sum}};
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

  // One array per node would waste memory; a node's value is a scalar or a row of n, evaluated depth first. A per-row
  // output (`entries` = 1) has a scalar `exact`, and arrays enter its bound through sums.
  struct Value {
    double scalar = 0;
    const double* row = nullptr;   // borrowed or owned
    std::vector<double> owned;
  };

  Value run(std::size_t index, std::size_t n, std::size_t entries, const std::vector<double>& scalars,
            const std::vector<std::vector<double>>& arrays, const double* exact) const {
    const Node& node = nodes[index];
    Value result;
    switch (node.op) {
      case Op::constant: result.scalar = node.value; return result;
      case Op::classes: result.scalar = static_cast<double>(n); return result;
      case Op::height: result.scalar = summation.height(static_cast<double>(n - node.slot)); return result;
      case Op::scalar: result.scalar = scalars[node.slot]; return result;
      case Op::array: result.row = arrays[node.slot].data(); return result;
      case Op::exact:
        if (entries != n || n == 1) result.scalar = exact[0];
        else result.row = exact;
        return result;
      default: break;
    }
    // Under a sum the values are per class, also when the output is one per row.
    result = run(node.children[0], n, entries, scalars, arrays, exact);
    if (node.op == Op::sum) {
      double total = 0;
      for (std::size_t j = 0; j < n; ++j) total += result.row ? result.row[j] : result.scalar;
      Value scalar;
      scalar.scalar = total * (1 + 0x1p-20);  // n additions in double, n 2^-53 < 2^-20
      return scalar;
    }
    if (node.op == Op::relative || node.op == Op::logarithm) {
      const double scale = node.value;
      // expm1(t) <= t (1 + t) for 0 <= t <= 1; beyond that the relation is vacuous anyway and expm1 is called.
      const auto f = [&](double a) {
        if (node.op == Op::logarithm) return a > 1 ? std::log(a) : 0.0;
        const double t = a * scale;
        return t <= 1 ? t * (1 + t) : std::expm1(t);
      };
      if (!result.row) {
        result.scalar = f(result.scalar);
        return result;
      }
      std::vector<double> values(n);
      for (std::size_t j = 0; j < n; ++j) values[j] = f(result.row[j]);
      result.owned = std::move(values);
      result.row = result.owned.data();
      return result;
    }
    for (std::size_t c = 1; c < node.children.size(); ++c) {
      Value right = run(node.children[c], n, entries, scalars, arrays, exact);
      if (!result.row && !right.row) {
        result.scalar = apply(node, result.scalar, right.scalar);
        continue;
      }
      std::vector<double> values = !result.owned.empty() ? std::move(result.owned)
                                   : !right.owned.empty() ? std::move(right.owned) : std::vector<double>(n);
      const double* a = result.row;
      const double* b = right.row;
      const double a_scalar = result.scalar, b_scalar = right.scalar;
      const auto combine = [&](auto f) {
        if (a && b) for (std::size_t j = 0; j < n; ++j) values[j] = f(a[j], b[j]);
        else if (a) for (std::size_t j = 0; j < n; ++j) values[j] = f(a[j], b_scalar);
        else for (std::size_t j = 0; j < n; ++j) values[j] = f(a_scalar, b[j]);
      };
      switch (node.op) {
        case Op::add: combine([](double x, double y) { return x + y; }); break;
        case Op::multiply: combine([](double x, double y) { return x * y; }); break;
        default: combine([&](double x, double y) { return apply(node, x, y); }); break;
      }
      result.owned = std::move(values);
      result.row = result.owned.data();
    }
    return result;
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

void Bound::evaluate(std::size_t n, const std::vector<double>& scalars, const std::vector<std::vector<double>>& arrays,
                     const std::vector<double>& exact, std::vector<double>& result) const {
  const std::size_t entries = exact.size();
  const Program::Value value = program_->run(program_->root, n, entries, scalars, arrays, exact.data());
  const double outward = program_->outward();
  result.resize(entries);
  for (std::size_t j = 0; j < entries; ++j) result[j] = (value.row ? value.row[j] : value.scalar) * outward;
}

double Bound::evaluate_sum(std::size_t n, const std::vector<double>& scalars, double total) const {
  const Program::Value value = program_->run(program_->sum_root, n, 1, scalars, {}, &total);
  return value.scalar * program_->outward();
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
        {"reciprocal", contract.reciprocal ? 1.0 : 0.0}};
    for (const json* lets : {document.contains("let") ? &document["let"] : nullptr,
                             found->contains("let") ? &(*found)["let"] : nullptr}) {
      if (!lets) continue;
      for (const auto& definition : *lets) program.named[definition.at(0)] = program.build(definition.at(1));
    }
    program.root = program.build(found->at("bound"));
    if (found->contains("sum_bound")) {
      program.sum_root = program.build((*found)["sum_bound"]);
      program.has_sum = true;
    }
    return bound;
  }
  throw std::logic_error("no bound for output " + output_name + " of " + signature.name + " in oracle/bounds");
}

}  // namespace sumzero
