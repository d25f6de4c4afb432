// Mutants of kl_forward, kl_reverse and jsd. Planted elsewhere: log_softmax against softmax, the log_target form, both sides
// on one path, the closed form of jsd (kernels `textbook.*`).
//
// The right rows work in the row's type T, in the difference form. d_j = ((other_j - base_j) - (other_k - base_k))/T with k the
// argmax of the base, w = expm1(d), S = sum b w, D = 1 + S (sum b (1 + w) when S < -1/2), h = d - log D:
//   o - b = b (w - S)/D,  KL = sum b phi2(h),  base gradient -b (d - sum b d).
// Beyond d = 80, or with an entry dead on one side only, both softmaxes and their logarithms directly.
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
  base_rounded, other_argmax,
  // ranges
  no_fallback, no_switch,
  // jsd
  beta_swapped, one_term_squared, log_of_mixture
};

/// e^v - 1 - v; without its series where that is planted.
template <Defect defect, class T>
T phi2(T v) {
  if (defect == Defect::naive_phi) return std::exp(v) - 1 - v;
  if (std::fabs(v) > 1) return std::expm1(v) - v;
  T sum = 0;
  for (int k = 20; k >= 2; --k) sum = (sum + 1) * v / T(k);  // v^2/2 (1 + v/3 (1 + ...)) after the last factor
  return sum * v;
}

/// Base and other of one row.
template <class T>
struct Pair {
  Tail<T> base, other;                   ///< of (logit - maximum)/T
  std::vector<T> b, o, d, w, difference, log_ratio;
  T s = 0, inverse = 1, mean = 0;        ///< S, 1/D, sum b d
  T temperature = 1;
  bool irregular = false, infinite = false, near = false;
};

template <class T>
Tail<T> tempered(const std::vector<T>& x, T t) {
  const T largest = x[textbook::first_maximum(x.data(), x.size())];
  std::vector<T> z(x.size());
  for (std::size_t j = 0; j < x.size(); ++j) z[j] = (x[j] - largest) / t;
  return tail_first(z.data(), z.size());
}

template <Defect defect, class T>
Pair<T> pair_of(const Row<T>& row, std::size_t base, std::size_t other) {
  Pair<T> pair;
  const std::size_t n = row.n;
  const T t = pair.temperature = defect == Defect::no_temperature ? T(1) : static_cast<T>(row.attribute[0]);
  std::vector<T> x(row.in[base], row.in[base] + n), y(row.in[other], row.in[other] + n);
  if (defect == Defect::logits_rounded)
    for (auto* z : {&x, &y})
      for (T& v : *z) v = std::isfinite(v) ? rounded(Format::bf16, v) : v;
  pair.base = tempered(x, t), pair.other = tempered(y, t);
  pair.irregular = std::isnan(pair.base.r) || std::isnan(pair.other.r);
  for (auto* values : {&pair.b, &pair.o, &pair.d, &pair.w, &pair.difference, &pair.log_ratio}) values->assign(n, T(0));
  if (pair.irregular) return pair;

  const std::size_t k = defect == Defect::other_argmax ? pair.other.k : pair.base.k;
  bool one_sided = false;
  T largest = 0;
  for (std::size_t j = 0; j < n; ++j) {
    pair.b[j] = pair.base.p(j), pair.o[j] = pair.other.p(j);
    if (defect == Defect::base_rounded) pair.b[j] = rounded(Format::bf16, pair.b[j]);
    one_sided |= dead(x[j]) != dead(y[j]);
    pair.infinite |= dead(y[j]) && !dead(x[j]);
  }
  std::vector<T> low(n);
  for (std::size_t j = 0; j < n; ++j) {
    if (dead(x[j]) || dead(y[j]) || dead(y[k])) continue;
    // T9 asks for d to twice the precision of T.
    double d = ((double(y[j]) - double(x[j])) - (double(y[k]) - double(x[k]))) / double(t);
    if (defect == Defect::rounded_apart) d = (y[j] / t - x[j] / t) - (y[k] / t - x[k] / t);
    pair.d[j] = static_cast<T>(d), low[j] = static_cast<T>(d - double(pair.d[j]));
    largest = std::max(largest, pair.d[j]);
    pair.mean += pair.b[j] * pair.d[j];
  }
  pair.near = !one_sided && (largest <= 80 || defect == Defect::no_fallback);
  if (pair.near) {
    for (std::size_t j = 0; j < n; ++j) {
      const T w = std::expm1(pair.d[j]);
      pair.w[j] = w + low[j] * (1 + w);
      pair.s += pair.b[j] * pair.w[j];
    }
    T denominator = 1 + pair.s, log_d = std::log1p(pair.s);
    if (pair.s < T(-0.5) && defect != Defect::no_switch) {
      denominator = 0;
      for (std::size_t j = 0; j < n; ++j) denominator += pair.b[j] * (1 + pair.w[j]);
      log_d = std::log(denominator);
    }
    pair.inverse = 1 / denominator;
    for (std::size_t j = 0; j < n; ++j) {
      if (dead(x[j])) continue;
      pair.difference[j] = pair.b[j] * (pair.w[j] - pair.s) * pair.inverse;
      pair.log_ratio[j] = pair.d[j] - log_d;
    }
    return pair;
  }
  const T log_b = std::log1p(pair.base.r), log_o = std::log1p(pair.other.r);
  T others = 0, correction = 0;
  for (std::size_t j = 0; j < n; ++j) {
    pair.difference[j] = pair.o[j] - pair.b[j];
    if (j != k) others += pair.difference[j];
    correction += pair.b[j] * (pair.d[j] - pair.mean);
    if (dead(x[j]) || dead(y[j])) continue;
    pair.log_ratio[j] = ((y[j] - y[pair.other.k]) / t - log_o) - ((x[j] - x[k]) / t - log_b);
  }
  pair.difference[k] = -others;
  pair.mean += correction;
  return pair;
}

/// KL(b || o) in terms that are never negative.
template <Defect defect, class T>
T divergence(const Pair<T>& pair) {
  if (pair.infinite) return std::numeric_limits<T>::infinity();
  T sum = 0;
  for (std::size_t j = 0; j < pair.b.size(); ++j) {
    const T h = pair.log_ratio[j], b = pair.b[j];
    const T beyond = pair.near ? b * ((pair.w[j] - pair.s) * pair.inverse - h) : (pair.o[j] - b) - b * h;
    const bool small = std::fabs(h) <= 1 && (b > 0 || pair.near);
    sum += small || defect == Defect::naive_phi ? b * phi2<defect>(h) : std::max(T(0), beyond);
  }
  return sum;
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
  const Pair<T> pair = defect == Defect::swapped ? pair_of<defect>(row, other, base) : pair_of<defect>(row, base, other);
  const auto write = [&](std::size_t output, std::size_t j, T value) {
    if (row.out[output]) row.out[output][j] = pair.irregular ? std::numeric_limits<T>::quiet_NaN() : value;
  };
  const auto [of_loss, of_gradient] = factors<defect>(row);
  T kl = divergence<defect>(pair), naive = 0;
  for (std::size_t j = 0; j < row.n; ++j) {
    const auto log_p = [&](const Tail<T>& tail) { return std::log(tail.p(j)); };
    if (pair.b[j] > 0 && pair.o[j] > 0) naive += pair.b[j] * (log_p(pair.base) - log_p(pair.other));
  }
  if (defect == Defect::naive_loss && !pair.infinite) kl = naive;
  if (defect == Defect::extra_cross_entropy) kl -= std::log(pair.other.p(pair.base.k));
  write(0, 0, static_cast<T>(of_loss) * kl);
  const T scale = static_cast<T>(row.factor * of_gradient);
  for (std::size_t j = 0; j < row.n; ++j) {
    T difference = pair.difference[j], centred = pair.d[j] - pair.mean;
    if (defect == Defect::direct_difference) difference = pair.o[j] - pair.b[j];
    if (defect == Defect::uncentred) centred = pair.log_ratio[j];
    if (defect == Defect::detached) centred = 0;
    if (defect == Defect::dead_teacher_dropped && pair.b[j] == 0) difference = 0;
    write(other + 1, j, scale * difference);
    write(base + 1, j, dead(row.in[base][j]) ? T(0) : pair.infinite ? std::numeric_limits<T>::quiet_NaN() : -scale * pair.b[j] * centred);
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

/// kappa = log p - log q, a = log(M/q), b = log(M/p), M = beta q + (1 - beta) p; of a and b the one at most 0 is a log1p, the
/// other is larger by |kappa|.
template <Defect defect, class T>
void jsd_row(const Row<T>& row) {
  const Pair<T> pair = pair_of<defect>(row, 1, 0);
  const auto write = [&](std::size_t output, std::size_t j, T value) {
    if (row.out[output]) row.out[output][j] = pair.irregular ? std::numeric_limits<T>::quiet_NaN() : value;
  };
  const auto [of_loss, of_gradient] = factors<defect>(row);
  const double weight = defect == Defect::beta_swapped ? 1 - row.attribute[3] : row.attribute[3];
  const T beta = static_cast<T>(weight), rest = static_cast<T>(1 - weight);
  const std::vector<T>&q = pair.b, &p = pair.o;
  std::vector<T> a(row.n), b(row.n);
  T from_q = 0, from_p = 0;
  const auto term = [](T mixed, T w, T l) { return std::fabs(l) <= 1 ? w * phi2<defect>(l) : std::max(T(0), mixed - w * (1 + l)); };
  for (std::size_t j = 0; j < row.n; ++j) {
    const bool no_q = dead(row.in[1][j]), no_p = dead(row.in[0][j]);
    const T kappa = pair.log_ratio[j], mixed = beta * q[j] + rest * p[j];
    if (no_q || no_p) a[j] = no_q ? T(0) : std::log(beta), b[j] = no_p ? T(0) : std::log(rest);
    else if (kappa >= 0) b[j] = std::log1p(beta * std::expm1(-kappa)), a[j] = kappa + b[j];
    else a[j] = std::log1p(rest * std::expm1(kappa)), b[j] = a[j] - kappa;
    if (defect == Defect::log_of_mixture && !no_q && !no_p) {
      const T log_m = std::log(mixed);
      a[j] = log_m - std::log(q[j]), b[j] = log_m - std::log(p[j]);
    }
    from_q += no_q ? mixed : term(mixed, q[j], a[j]);
    from_p += no_p ? mixed : term(mixed, p[j], b[j]);
  }
  const T square = static_cast<T>(of_loss);
  T loss = square * (beta * from_q + rest * from_p);
  if (defect == Defect::one_term_squared) loss = square * beta * from_q + rest * from_p;
  write(0, 0, loss);
  const T scale = static_cast<T>(row.factor * of_gradient);
  const auto gradient = [&](std::size_t output, T of, const std::vector<T>& w, const std::vector<T>& l, bool centred) {
    T mean = 0;
    for (std::size_t j = 0; j < row.n && centred; ++j) mean += w[j] * l[j];
    for (std::size_t j = 0; j < row.n; ++j) write(output, j, w[j] == 0 ? T(0) : -scale * of * (w[j] * (l[j] - mean)));
  };
  gradient(1, rest, p, b, defect != Defect::uncentred);
  gradient(2, defect == Defect::detached ? T(0) : beta, q, a, true);
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
  enter(in_row<Loss<Defect::no_fallback>>(op, "no fallback for far logits", "overflow of expm1", "special values", float_formats));
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
  enter(in_row<Loss<Defect::base_rounded>>(op, "base probabilities in 16 bits", "p - t of a base that does not sum to one", "bound", float_formats));
  enter(in_row<Loss<Defect::other_argmax>>(op, "argmax of the other side", "argmax taken from the student", "bound", float_formats));
  enter(in_row<Loss<Defect::no_switch>>(op, "1 + S where S is near -1", "cancellation in D", "bound", float_formats,
                                         "within T9: 1 + w errs by as much as S does"));
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
