// Mutants of kl_forward, kl_reverse and jsd. Planted elsewhere: log_softmax against softmax, the log_target form, both sides
// on one path, the closed form of jsd (kernels `textbook.*`).
//
// The right rows work in double on logits of at most float precision, in the difference form: d = (other - base) less its
// value at the maximum of the base, x = d - sum b d, S = sum b phi2(x), KL = log1p(S), o - b = b (expm1(x) - S)/(1 + S).
#include <algorithm>

#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

enum class Defect {
  none,
  // loss and its factors
  naive_loss, naive_phi, no_square, no_temperature, gradient_squared, rounded_apart, logits_rounded, swapped, extra_cross_entropy,
  // gradients
  direct_difference, uncentred, detached, dead_teacher_dropped,
  // ranges
  no_fallback,
  // jsd
  beta_swapped, one_term_squared, log_of_mixture
};

double phi2(double v) {
  if (std::fabs(v) > 0.5) return std::expm1(v) - v;
  double sum = 0;
  for (int k = 20; k >= 2; --k) sum = (sum + 1) * v / k;  // v^2/2 (1 + v/3 (1 + ...)) after the last factor
  return sum * v;
}

/// Base and other of one row; `kl` = KL(base || other).
struct Pair {
  Tail<double> base, other;
  std::vector<double> b, o, difference, centred, log_ratio;
  double kl = 0, temperature = 1;
  bool irregular = false, infinite = false;
};

template <Defect defect, class T>
Pair pair_of(const Row<T>& row, std::size_t base, std::size_t other) {
  Pair pair;
  const std::size_t n = row.n;
  pair.temperature = defect == Defect::no_temperature ? 1 : row.attribute[0];
  const double t = pair.temperature;
  std::vector<double> x(row.in[base], row.in[base] + n), y(row.in[other], row.in[other] + n);
  if (defect == Defect::logits_rounded)
    for (auto* z : {&x, &y})
      for (double& v : *z) v = std::isfinite(v) ? round_to(Format::bf16, v) : v;
  std::vector<double> xt(n), yt(n);
  for (std::size_t j = 0; j < n; ++j) {
    xt[j] = x[j] / t, yt[j] = y[j] / t;
    if (defect == Defect::rounded_apart) xt[j] = static_cast<float>(xt[j]), yt[j] = static_cast<float>(yt[j]), x[j] = xt[j] * t, y[j] = yt[j] * t;
  }
  pair.base = tail_first(xt.data(), n), pair.other = tail_first(yt.data(), n);
  pair.irregular = std::isnan(pair.base.r) || std::isnan(pair.other.r);
  for (auto* values : {&pair.b, &pair.o, &pair.difference, &pair.centred, &pair.log_ratio}) values->assign(n, 0.0);
  if (pair.irregular) return pair;

  const std::size_t k = pair.base.k;
  std::vector<double> d(n);
  double mean = 0, largest = 0, s = 0;
  bool one_sided = false;
  for (std::size_t j = 0; j < n; ++j) {
    pair.b[j] = pair.base.p(j), pair.o[j] = pair.other.p(j);
    one_sided |= dead(x[j]) != dead(y[j]);
    pair.infinite |= dead(y[j]) && !dead(x[j]);
    if (!dead(x[j]) && !dead(y[j]) && !dead(y[k])) d[j] = ((y[j] - x[j]) - (y[k] - x[k])) / t;
    mean += pair.b[j] * d[j];
  }
  for (std::size_t j = 0; j < n; ++j)
    if (!dead(x[j])) pair.centred[j] = d[j] - mean, largest = std::max(largest, pair.centred[j]);
  if (!one_sided && (largest < 300 || defect == Defect::no_fallback)) {
    const auto phi = [](double v) { return defect == Defect::naive_phi ? double(std::exp(float(v)) - 1 - float(v)) : phi2(v); };
    const auto held = [](double v) { return defect == Defect::no_fallback ? double(float(v)) : v; };  // float overflows at 88
    for (std::size_t j = 0; j < n; ++j) s += dead(x[j]) ? 0 : pair.b[j] * held(phi(pair.centred[j]));
    pair.kl = std::log1p(s);
    for (std::size_t j = 0; j < n; ++j) {
      if (dead(x[j])) continue;
      pair.difference[j] = pair.b[j] * (held(std::expm1(pair.centred[j])) - s) / (1 + s);
      pair.log_ratio[j] = pair.centred[j] - pair.kl;
    }
    return pair;
  }
  const double log_b = std::log1p(pair.base.r), log_o = std::log1p(pair.other.r);
  for (std::size_t j = 0; j < n; ++j) {
    pair.difference[j] = pair.o[j] - pair.b[j];
    if (dead(x[j]) || dead(y[j])) continue;
    pair.log_ratio[j] = ((yt[j] - pair.other.m) - log_o) - ((xt[j] - pair.base.m) - log_b);
    pair.kl -= pair.b[j] * pair.log_ratio[j];
  }
  for (std::size_t j = 0; j < n; ++j) pair.centred[j] = dead(x[j]) || dead(y[j]) ? 0 : pair.log_ratio[j] + pair.kl;
  return pair;
}

/// Factors of the loss and of its gradients.
template <Defect defect, class T>
std::pair<double, double> factors(const Row<T>& row) {
  const double t = row.attribute[0];
  if (row.attribute[1] == 0) return {1, 1 / t};
  if (defect == Defect::no_square) return {1, t};
  if (defect == Defect::gradient_squared) return {t * t, t * t};
  return {t * t, t};
}

/// `base` and `other` are inputs 0 (student) and 1 (teacher); their gradients are outputs 1 and 2.
template <Defect defect, std::size_t base, std::size_t other, class T>
void kl(const Row<T>& row) {
  const Pair pair = defect == Defect::swapped ? pair_of<defect>(row, other, base) : pair_of<defect>(row, base, other);
  const auto write = [&](std::size_t output, std::size_t j, double value) {
    if (row.out[output]) row.out[output][j] = static_cast<T>(pair.irregular ? std::nan("") : value);
  };
  const auto [of_loss, of_gradient] = factors<defect>(row);
  double loss = pair.infinite ? std::numeric_limits<double>::infinity() : of_loss * pair.kl;
  float naive = 0;
  for (std::size_t j = 0; j < row.n; ++j) {
    const auto log_p = [&](const Tail<double>& tail, std::size_t in) {
      return float(float(row.in[in][j] / pair.temperature) - float(tail.m)) - std::log1p(float(tail.r));
    };
    if (pair.b[j] > 0 && pair.o[j] > 0) naive += float(pair.b[j]) * (log_p(pair.base, base) - log_p(pair.other, other));
    if (defect == Defect::extra_cross_entropy && j == pair.base.k) loss += std::log1p(pair.other.r) + (pair.other.m - row.in[other][j] / pair.temperature);
  }
  if (defect == Defect::naive_loss && !pair.infinite) loss = of_loss * naive;
  write(0, 0, loss);
  const double scale = row.factor * of_gradient;
  for (std::size_t j = 0; j < row.n; ++j) {
    double difference = pair.difference[j], centred = pair.centred[j];
    if (defect == Defect::direct_difference) difference = float(pair.o[j]) - float(pair.b[j]);
    if (defect == Defect::uncentred) centred = pair.log_ratio[j];
    if (defect == Defect::detached) centred = 0;
    if (defect == Defect::dead_teacher_dropped && pair.b[j] == 0) difference = 0;
    write(other + 1, j, scale * difference);
    write(base + 1, j, dead(row.in[base][j]) ? 0 : pair.infinite ? std::nan("") : -scale * pair.b[j] * centred);
  }
}

template <Defect defect>
struct Forward {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    kl<planted ? defect : Defect::none, 1, 0>(row);
  }
};
template <Defect defect>
struct Reverse {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    kl<planted ? defect : Defect::none, 0, 1>(row);
  }
};

/// kappa = log p - log q, b = log(M/p), a = log(M/q), M = beta q + (1 - beta) p.
template <Defect defect, class T>
void jsd_row(const Row<T>& row) {
  const Pair pair = pair_of<defect>(row, 1, 0);
  const auto write = [&](std::size_t output, std::size_t j, double value) {
    if (row.out[output]) row.out[output][j] = static_cast<T>(pair.irregular ? std::nan("") : value);
  };
  const auto [of_loss, of_gradient] = factors<defect>(row);
  const double beta = defect == Defect::beta_swapped ? 1 - row.attribute[3] : row.attribute[3], rest = 1 - beta;
  const std::vector<double>&q = pair.b, &p = pair.o;
  std::vector<double> a(row.n), b(row.n);
  double from_q = 0, from_p = 0, mean_a = 0, mean_b = 0;
  const auto term = [](double mixed, double weight, double log_weight) {
    return std::fabs(log_weight) < 0.5 ? weight * phi2(log_weight) : mixed - weight * (1 + log_weight);
  };
  for (std::size_t j = 0; j < row.n; ++j) {
    const bool no_q = dead(row.in[1][j]), no_p = dead(row.in[0][j]);
    const double kappa = pair.log_ratio[j], mixed = beta * q[j] + rest * p[j];
    if (no_q || no_p) a[j] = no_q ? 0 : std::log(beta), b[j] = no_p ? 0 : std::log(rest);
    else if (kappa >= 0) b[j] = std::log1p(beta * std::expm1(-kappa)), a[j] = kappa + b[j];
    else a[j] = std::log1p(rest * std::expm1(kappa)), b[j] = a[j] - kappa;
    if (defect == Defect::log_of_mixture && !no_q && !no_p) {
      const float m = float(beta) * float(q[j]) + float(rest) * float(p[j]);
      a[j] = std::log(m) - std::log(float(q[j])), b[j] = std::log(m) - std::log(float(p[j]));
    }
    from_q += no_q ? mixed : term(mixed, q[j], a[j]);
    from_p += no_p ? mixed : term(mixed, p[j], b[j]);
    mean_a += q[j] * a[j], mean_b += p[j] * b[j];
  }
  double loss = of_loss * (beta * from_q + rest * from_p);
  if (defect == Defect::one_term_squared) loss = of_loss * beta * from_q + rest * from_p;
  write(0, 0, loss);
  const double scale = row.factor * of_gradient;
  for (std::size_t j = 0; j < row.n; ++j) {
    write(1, j, dead(row.in[0][j]) ? 0 : -scale * rest * p[j] * (b[j] - (defect == Defect::uncentred ? 0 : mean_b)));
    write(2, j, dead(row.in[1][j]) || defect == Defect::detached ? 0 : -scale * beta * q[j] * (a[j] - mean_a));
  }
}
template <Defect defect>
struct Jsd {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    jsd_row<planted ? defect : Defect::none>(row);
  }
};

template <template <Defect> class Loss>
void enter_shared(const std::string& op) {
  const auto enter = [](Mutant mutant) { catalogue().push_back(std::move(mutant)); };
  enter(in_row<Loss<Defect::no_square>>(op, "T^2 missing", "temperature factors", "bound"));
  enter(in_row<Loss<Defect::no_temperature>>(op, "temperature missing", "trl 5731, trl 3043", "bound"));
  enter(in_row<Loss<Defect::gradient_squared>>(op, "gradient times T^2", "temperature factors", "bound"));
  enter(in_row<Loss<Defect::rounded_apart>>(op, "s/T and t/T rounded apart", "divided before subtracting", "bound", float_formats));
  enter(in_row<Loss<Defect::logits_rounded>>(op, "logits rounded to 16 bits", "Liger-Kernel 1432", "bound", float_formats));
  enter(in_row<Loss<Defect::naive_phi>>(op, "expm1(x) - x without a series", "cancellation near equality", "bound", float_formats));
  enter(in_row<Loss<Defect::no_fallback>>(op, "no fallback for far logits", "overflow of expm1", "finite", float_formats));
  enter(in_row<Loss<Defect::uncentred>>(op, "gradient without its centre", "rho in place of rho - KL", "gradient sum"));
  enter(in_row<Loss<Defect::detached>>(op, "one gradient zero", "teacher detached, DirectML 740", "bound"));
}
template <template <Defect> class Loss>
void enter_kl(const std::string& op) {
  enter_shared<Loss>(op);
  const auto enter = [](Mutant mutant) { catalogue().push_back(std::move(mutant)); };
  enter(in_row<Loss<Defect::naive_loss>>(op, "sum b (log b - log o)", "negative divergence near equality", "range", float_formats));
  enter(in_row<Loss<Defect::direct_difference>>(op, "o - b of rounded softmaxes", "both sides on one path", "bound", float_formats));
  enter(in_row<Loss<Defect::swapped>>(op, "student and teacher swapped", "forward for reverse", "bound"));
  enter(in_row<Loss<Defect::extra_cross_entropy>>(op, "extra cross-entropy", "trl 5731, trl 3043", "exact zero"));
  enter(in_row<Loss<Defect::dead_teacher_dropped>>(op, "entries without base dropped", "zero teacher entries", "gradient sum"));
}
const bool entered = [] {
  enter_kl<Forward>("kl_forward");
  enter_kl<Reverse>("kl_reverse");
  enter_shared<Jsd>("jsd");
  catalogue().push_back(in_row<Jsd<Defect::beta_swapped>>("jsd", "beta swapped", "trl 3043", "bound"));
  catalogue().push_back(in_row<Jsd<Defect::one_term_squared>>("jsd", "T^2 on one term", "temperature factors", "bound"));
  catalogue().push_back(in_row<Jsd<Defect::log_of_mixture>>("jsd", "log of an underflowed mixture", "Liger-Kernel 769", "special values", float_formats));
  return true;
}();

}  // namespace
}  // namespace sumzero::mutants
