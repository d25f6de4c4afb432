// The three number types against each other and against MPFR: Ball contains, Arb and Enclosure agree, the C library
// keeps what Ball assumes of it, and precisions are at least what was asked, thread by thread.
#include <gtest/gtest.h>
#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>

#include "reference/number/sum.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using BallUnary = std::function<Ball(const Ball&)>;
using BallBinary = std::function<Ball(const Ball&, const Ball&)>;
using ExactUnary = std::function<Enclosure(const Enclosure&)>;
using ExactBinary = std::function<Enclosure(const Enclosure&, const Enclosure&)>;

/// Random doubles of all magnitudes with the hostile ones among them.
class Operands {
 public:
  explicit Operands(unsigned seed, int span) : engine_(seed), span_(span) {}
  double next() {
    static constexpr double hostile[] = {0, 1, -1, 0.5, -0.5, 0x1p-53, -0x1p-53, 1 - 0x1p-53, 1 + 0x1p-52, 0x1p-1074, 0x1p-1022,
                                         2, 0.6931471805599453, -0.9999999999999999, 3, 0x1p-30, 700, -700, -745};
    const auto pick = engine_() % 8;
    if (pick == 0) return hostile[engine_() % std::size(hostile)];
    const double fraction = 1 + static_cast<double>(engine_() >> 12) * 0x1p-52;
    const int exponent = pick < 4 ? static_cast<int>(engine_() % 12) - 6 : static_cast<int>(engine_() % static_cast<unsigned>(2 * span_)) - span_;
    return std::ldexp(engine_() & 1 ? fraction : -fraction, exponent);
  }
  Ball ball() {
    const double middle = next();
    const auto pick = engine_() % 3;
    if (pick == 0) return Ball(middle);
    return {middle, std::fabs(middle) * std::ldexp(1.0, -static_cast<int>(engine_() % 52)) * (pick == 1 ? 0x1p-20 : 0.75)};
  }

 private:
  std::mt19937_64 engine_;
  int span_;
};

/// Points of a ball: its middle and both ends.
std::vector<Enclosure> points(const Ball& a) {
  return {Enclosure(a.mid), Enclosure(a.mid) + Enclosure(a.rad), Enclosure(a.mid) - Enclosure(a.rad)};
}

bool usable(const Ball& result) { return std::isfinite(result.mid) && std::isfinite(result.rad); }

int misses(const BallUnary& ball, const ExactUnary& exact, int span, const std::function<bool(const Ball&)>& domain) {
  const WorkingPrecision precision(256);
  Operands operands(7, span);
  int missed = 0;
  for (int i = 0; i < 4000; ++i) {
    const Ball a = operands.ball();
    if (!domain(a)) continue;
    const Ball result = ball(a);
    if (!usable(result)) continue;
    for (const Enclosure& point : points(a)) missed += separation(exact(point), result) > 0;
  }
  return missed;
}
int misses(const BallBinary& ball, const ExactBinary& exact, int span) {
  const WorkingPrecision precision(256);
  Operands operands(11, span);
  int missed = 0;
  for (int i = 0; i < 3000; ++i) {
    const Ball a = operands.ball(), b = operands.ball();
    const Ball result = ball(a, b);
    if (!usable(result)) continue;
    for (const Enclosure& x : points(a))
      for (const Enclosure& y : points(b))
        if (!is_exact_zero(y)) missed += separation(exact(x, y), result) > 0;
  }
  return missed;
}

const auto anywhere = [](const Ball&) { return true; };
const auto exp_range = [](const Ball& a) { return std::fabs(a.mid) + a.rad < 709; };
const auto positive = [](const Ball& a) { return a.mid - a.rad > 0; };
const auto above_minus_one = [](const Ball& a) { return a.mid - a.rad > -1; };

// The span keeps products and quotients of doubles finite: 2 500 < 1023.
TEST(BallNumber, SumsAndProductsContain) {
  EXPECT_EQ(misses([](const Ball& a, const Ball& b) { return a + b; }, [](const Enclosure& a, const Enclosure& b) { return a + b; }, 500), 0);
  EXPECT_EQ(misses([](const Ball& a, const Ball& b) { return a - b; }, [](const Enclosure& a, const Enclosure& b) { return a - b; }, 500), 0);
  EXPECT_EQ(misses([](const Ball& a, const Ball& b) { return a * b; }, [](const Enclosure& a, const Enclosure& b) { return a * b; }, 500), 0);
  EXPECT_EQ(misses([](const Ball& a, const Ball& b) { return a / b; }, [](const Enclosure& a, const Enclosure& b) { return a / b; }, 500), 0);
}
// Underflow: products of numbers near 2^-600 vanish in double; the floor must cover them.
TEST(BallNumber, UnderflowIsCovered) {
  EXPECT_EQ(misses([](const Ball& a, const Ball& b) { return a * b; }, [](const Enclosure& a, const Enclosure& b) { return a * b; }, 1000), 0);
  EXPECT_EQ(misses([](const Ball& a, const Ball& b) { return a / b; }, [](const Enclosure& a, const Enclosure& b) { return a / b; }, 1000), 0);
}
TEST(BallNumber, FunctionsContain) {
  EXPECT_EQ(misses([](const Ball& a) { return abs(a); }, [](const Enclosure& a) { return abs(a); }, 500, anywhere), 0);
  EXPECT_EQ(misses([](const Ball& a) { return exp(a); }, [](const Enclosure& a) { return exp(a); }, 60, exp_range), 0);
  EXPECT_EQ(misses([](const Ball& a) { return expm1(a); }, [](const Enclosure& a) { return expm1(a); }, 60, exp_range), 0);
  EXPECT_EQ(misses([](const Ball& a) { return log(a); }, [](const Enclosure& a) { return log(a); }, 500, positive), 0);
  EXPECT_EQ(misses([](const Ball& a) { return log1p(a); }, [](const Enclosure& a) { return log1p(a); }, 500, above_minus_one), 0);
  // At 256 bits e^x - 1 - x cancels 2 log2(1/|x|) bits: |x| >= 2^-60 leaves 136.
  EXPECT_EQ(misses([](const Ball& a) { return phi2(a); }, [](const Enclosure& a) { return phi2(a); }, 60,
                   [](const Ball& a) { return exp_range(a) && (a.mid == 0 || std::fabs(a.mid) > 0x1p-60); }), 0);
}

// Planted: a product without its own rounding error, an exponential that takes e^t - 1 <= t, a quotient that forgets the
// radius of the divisor.
TEST(BallNumber, TooSmallRadiiAreCaught) {
  const auto product = [](const Ball& a, const Ball& b) {
    return Ball{a.mid * b.mid, std::fabs(a.mid) * b.rad + a.rad * (std::fabs(b.mid) + b.rad)};
  };
  EXPECT_GT(misses(product, [](const Enclosure& a, const Enclosure& b) { return a * b; }, 500), 100);
  const auto exponential = [](const Ball& a) { return Ball{std::exp(a.mid), std::exp(a.mid) * a.rad}; };
  EXPECT_GT(misses(exponential, [](const Enclosure& a) { return exp(a); }, 60, exp_range), 100);
  const auto quotient = [](const Ball& a, const Ball& b) {
    return Ball{a.mid / b.mid, a.rad / std::fabs(b.mid) + std::fabs(a.mid / b.mid) * Ball::u};
  };
  EXPECT_GT(misses(quotient, [](const Enclosure& a, const Enclosure& b) { return a / b; }, 500), 100);
}

TEST(BallNumber, ExactResultsStayExact) {
  for (const double x : {0.1, 17.0, 0x1p-1074, 1e300}) {
    EXPECT_TRUE(is_exact_zero(Ball(x) - Ball(x)));
    EXPECT_TRUE(is_exact_zero(phi2(Ball(0.0))));
    EXPECT_EQ((Ball(x) + Ball(0.0)).rad, 0);
  }
  EXPECT_TRUE(is_special(Ball(infinity)) && is_special(Ball(std::nan(""))));
  EXPECT_FALSE(is_special(Ball{0, infinity}));
  EXPECT_EQ(log(Ball{1, 1}).rad, infinity);
  EXPECT_EQ((Ball(1) / Ball{1, 1}).rad, infinity);
}

TEST(BallNumber, RowSumsContain) {
  const WorkingPrecision precision(256);
  Operands operands(3, 40);
  for (const std::size_t n : {1u, 2u, 7u, 8u, 9u, 64u, 1000u}) {
    std::vector<Ball> terms(n);
    for (Ball& term : terms) term = operands.ball();
    for (const std::size_t skip : {std::size_t{0}, n / 2, n}) {
      Enclosure middle, upper;
      for (std::size_t j = 0; j < n; ++j) {
        if (j == skip) continue;
        middle = middle + Enclosure(terms[j].mid);
        upper = upper + (Enclosure(terms[j].mid) + Enclosure(terms[j].rad));
      }
      const Ball sum = sum_except<Ball>(n, skip, [&](std::size_t j) { return terms[j]; });
      EXPECT_EQ(separation(middle, sum), 0) << n;
      EXPECT_EQ(separation(upper, sum), 0) << n;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------
// The assumption about the C library

struct LibraryFunction {
  const char* title;
  double (*library)(double);
  int (*exact)(mpfr_t, mpfr_srcptr, mpfr_rnd_t);
  double low, high;  ///< arguments, besides tiny ones
};

/// Largest error in ulp of the result's binade, measured at 120 bits. Subnormal results are left to Ball's floor.
double largest_error(const LibraryFunction& f, double (*computed)(double), int samples) {
  mpfr_t x, y, difference;
  mpfr_inits2(120, x, y, difference, static_cast<mpfr_ptr>(nullptr));
  std::mt19937_64 engine(5);
  double worst = 0;
  for (int i = 0; i < samples; ++i) {
    const double uniform = static_cast<double>(engine() >> 11) * 0x1p-53;
    double argument = f.low + (f.high - f.low) * uniform;
    if (i % 3 == 1) argument = std::ldexp(argument, -static_cast<int>(engine() % 60));
    if (i % 3 == 2 && f.low >= 0) argument = std::ldexp(1 + uniform, static_cast<int>(engine() % 2000) - 1000);
    const double value = computed(argument);
    mpfr_set_d(x, argument, MPFR_RNDN);
    f.exact(y, x, MPFR_RNDN);
    if (mpfr_zero_p(y) || std::fabs(mpfr_get_d(y, MPFR_RNDN)) < 0x1p-1022 || !std::isfinite(value)) continue;
    mpfr_sub_d(difference, y, value, MPFR_RNDN);
    mpfr_mul_2si(difference, difference, 53 - mpfr_get_exp(y), MPFR_RNDN);
    worst = std::max(worst, std::fabs(mpfr_get_d(difference, MPFR_RNDN)));
  }
  mpfr_clears(x, y, difference, static_cast<mpfr_ptr>(nullptr));
  return worst;
}

const LibraryFunction library_functions[] = {
    {"exp", std::exp, mpfr_exp, -708, 709},
    {"expm1", std::expm1, mpfr_expm1, -40, 709},
    {"log", std::log, mpfr_log, 0, 4},
    {"log1p", std::log1p, mpfr_log1p, -1, 4},
};

// Ball charges 4 u = 2 ulp at least; the assumption is 1 ulp.
TEST(CLibrary, ErrsByAtMostOneUlp) {
  for (const LibraryFunction& f : library_functions) {
    const double worst = largest_error(f, f.library, 150'000);
    std::printf("  %-6s worst %.4f ulp\n", f.title, worst);
    EXPECT_LE(worst, 1) << f.title;
    EXPECT_GE(worst, 0.4) << f.title << ": rounding alone reaches half an ulp";
  }
}

// Planted: one step off to the side.
TEST(CLibrary, AStepTooFarIsCaught) {
  EXPECT_GT(largest_error(library_functions[0], [](double x) { return std::nextafter(std::nextafter(std::exp(x), 0.0), 0.0); }, 1000), 1);
}

/// exp of one number through the row form, in the vectors of this machine or in the smallest ones.
Ball exp_in_row(const Ball& a, bool widest) {
  BallArray in, out;
  in.resize(lane_count + 1);
  out.resize(lane_count + 1);
  for (std::size_t j = 0; j < in.size(); ++j) in[j] = a;
  if (widest) on_widest_vectors([&] { exp_each(in, out); });
  else exp_each(in, out);
  return out[1];
}

// Ball charges 10 u = 5 ulp for the vector form; the C library documents 4.
TEST(CLibrary, VectorExponentialErrsByAtMostFourUlp) {
  const LibraryFunction& f = library_functions[0];
  for (const auto computed : {+[](double x) { return exp_in_row(Ball(x), true).mid; }, +[](double x) { return exp_in_row(Ball(x), false).mid; }}) {
    const double worst = largest_error(f, computed, 60'000);
    std::printf("  worst %.4f ulp\n", worst);
    EXPECT_LE(worst, 4);
    EXPECT_GE(worst, 0.4);
  }
}

TEST(BallNumber, RowExponentialsContain) {
  for (const bool widest : {true, false}) {
    EXPECT_EQ(misses([&](const Ball& a) { return exp_in_row(a, widest); }, [](const Enclosure& a) { return exp(a); }, 11,
                     [](const Ball& a) { return std::fabs(a.mid) + a.rad < 740; }), 0);
    // Planted: half of the radius.
    EXPECT_GT(misses([&](const Ball& a) { const Ball e = exp_in_row(a, widest); return Ball(e.mid, e.rad * 0.5); },
                     [](const Enclosure& a) { return exp(a); }, 11, [](const Ball& a) { return std::fabs(a.mid) + a.rad < 740; }), 0);
  }
}

// ---------------------------------------------------------------------------------------------------------
// Arb and Enclosure

TEST(ArbNumber, AgreesWithEnclosure) {
  Operands operands(23, 60);
  for (const int bits : {96, 128, 300}) {
    const WorkingPrecision precision(bits);
    for (int i = 0; i < 600; ++i) {
      const double a = operands.next(), b = operands.next();
      const Enclosure ea(a), eb(b);
      const Arb ra(a), rb(b);
      ASSERT_EQ(separation(ea + eb, ra + rb), 0);
      ASSERT_EQ(separation(ea - eb, ra - rb), 0);
      ASSERT_EQ(separation(ea * eb, ra * rb), 0);
      if (b != 0) { ASSERT_EQ(separation(ea / eb, ra / rb), 0); }
      ASSERT_EQ(separation(abs(ea), abs(ra)), 0);
      if (std::fabs(a) < 1000) {
        ASSERT_EQ(separation(exp(ea), exp(ra)), 0) << a;
        ASSERT_EQ(separation(expm1(ea), expm1(ra)), 0) << a;
        ASSERT_EQ(separation(phi2(ea), phi2(ra)), 0) << a;
      }
      if (a > 0) { ASSERT_EQ(separation(log(ea), log(ra)), 0) << a; }
      if (a > -1) { ASSERT_EQ(separation(log1p(ea), log1p(ra)), 0) << a; }
    }
  }
}

// Planted: a value off by 2^-70 relative, far inside double's resolution, is told apart at 128 bits.
TEST(ArbNumber, ASmallErrorIsCaught) {
  const WorkingPrecision precision(128);
  EXPECT_GT(separation(exp(Enclosure(1.0)), exp(Arb(1.0)) * (Arb(1.0) + Arb(0x1p-70))), 0);
}

TEST(ArbNumber, MagnitudesEnclose) {
  const WorkingPrecision precision(128);
  const Arb third = Arb(1.0) / Arb(-3.0);
  EXPECT_GE(magnitude_upper(third), 1.0 / 3);
  EXPECT_LE(magnitude_lower(third), 1.0 / 3 + 0x1p-54);
  EXPECT_LE(radius_upper(third), 0x1p-126);
  EXPECT_TRUE(is_special(Arb(infinity)) && is_special(Arb(std::nan(""))));
  EXPECT_TRUE(is_exact_zero(Arb(0.1) - Arb(0.1)));
}

// ---------------------------------------------------------------------------------------------------------
// Enclosure and its precision

TEST(Precision, DigitsAllotAtLeastTheAskedBits) {
  for (int bits = 96; bits <= 16384; ++bits) {
    const int digits = decimal_digits_for(bits);
    // The map of Boost as documented in working_precision.hpp.
    const int allotted = digits * 1000 / 301 + (digits * 1000 % 301 != 0 ? 2 : 1);
    ASSERT_GE(allotted, bits);
    ASSERT_LE(allotted, bits + 12) << "three digits at most too many";
  }
}

/// -log2 of the half-width of 2/3, which lies in [1/2, 1): the interval is one spacing 2^-p wide, so half of it is
/// 2^-(p+1). Scaled by exact powers of two to stay inside double's range.
double achieved_bits(int bits) {
  Enclosure value = Enclosure(2.0) / Enclosure(3.0);
  int scaled = 0;
  for (; scaled + 1000 < bits; scaled += 500) value = value * Enclosure(0x1p500);
  return scaled - std::log2(radius_upper(value)) - 1;
}

TEST(Precision, EnclosuresHaveTheAskedBits) {
  for (const int bits : {64, 96, 128, 192, 384, 768, 1536, 3072, 6144, 12288, 16384}) {
    const WorkingPrecision precision(bits);
    EXPECT_EQ(WorkingPrecision::bits(), bits);
    EXPECT_GE(achieved_bits(bits), bits);
    EXPECT_LE(achieved_bits(bits), bits + 12);
  }
}

TEST(Precision, IsRestoredAndPerThread) {
  const int before = WorkingPrecision::bits();
  {
    const WorkingPrecision outer(200);
    {
      const WorkingPrecision inner(800);
      EXPECT_GE(achieved_bits(800), 800);
    }
    EXPECT_EQ(WorkingPrecision::bits(), 200);
    EXPECT_LT(achieved_bits(200), 220);
  }
  EXPECT_EQ(WorkingPrecision::bits(), before);

  const auto measure = [](int bits, double* lowest, double* highest) {
    const WorkingPrecision precision(bits);
    for (int i = 0; i < 2000; ++i) {
      const double achieved = achieved_bits(bits);
      *lowest = std::min(*lowest, achieved);
      *highest = std::max(*highest, achieved);
    }
  };
  double low_a = 1e9, high_a = 0, low_b = 1e9, high_b = 0;
  std::thread a(measure, 100, &low_a, &high_a), b(measure, 900, &low_b, &high_b);
  a.join();
  b.join();
  EXPECT_GE(low_a, 100);
  EXPECT_LT(high_a, 115);
  EXPECT_GE(low_b, 900);
  EXPECT_LT(high_b, 915);
}

TEST(EnclosureNumber, ContainsAndPrints) {
  const WorkingPrecision precision(128);
  const Enclosure third = Enclosure(1.0) / Enclosure(3.0);
  EXPECT_FALSE(contains(third, 1.0 / 3));  // the double nearest 1/3 is not 1/3
  EXPECT_TRUE(contains(third * Enclosure(3.0), 1.0));
  EXPECT_TRUE(contains(third, third));
  // 2^-1 + 2^-60: 21 digits of the exact decimal 0.500000000000000000867...
  EXPECT_EQ(decimal(Enclosure(0.5) + Enclosure(0x1p-60), 21), "5.00000000000000000867e-01");
  EXPECT_EQ(decimal(Enclosure(0.0), 5), "0");
  EXPECT_EQ(decimal(Enclosure(infinity), 5), "inf");
  EXPECT_EQ(decimal(Enclosure(std::nan("")), 5), "nan");
  EXPECT_TRUE(is_exact_zero(Enclosure(0.1) - Enclosure(0.1)));
  EXPECT_TRUE(is_special(Enclosure(-infinity)));
}

}  // namespace
}  // namespace sumzero
