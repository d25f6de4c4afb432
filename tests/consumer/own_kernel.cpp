// Bring your own kernel: a function for one row, a registration, and the command line.
#include <cmath>

#include <fuzz/sumzero.hpp>

namespace {

void softmax_row(const sumzero::Row<float>& row) {
  const float* x = row.in[0];
  float* p = row.out[0];
  float m = x[0], s = 0;
  for (std::size_t j = 1; j < row.n; ++j) m = x[j] > m || std::isnan(x[j]) ? x[j] : m;
  for (std::size_t j = 0; j < row.n; ++j) s += p[j] = std::exp(x[j] - m);
  for (std::size_t j = 0; j < row.n; ++j) p[j] /= s;
}

// The textbook gradient p - onehot: the target's entry collapses to 0 once its logit leads by 17.
void collapsing_cross_entropy_row(const sumzero::Row<float>& row) {
  const float* x = row.in[0];
  float m = x[0], s = 0;
  for (std::size_t j = 1; j < row.n; ++j) m = x[j] > m ? x[j] : m;
  for (std::size_t j = 0; j < row.n; ++j) s += std::exp(x[j] - m);
  for (std::size_t j = 0; j < row.n; ++j) {
    const float p = std::exp(x[j] - m) / s;
    row.out[1][j] = (p - (static_cast<std::int64_t>(j) == row.label ? 1.0f : 0.0f)) * static_cast<float>(row.factor);
  }
}

sumzero::Contract contract() {
  sumzero::Contract c;
  c.exp_error = 2;  // 1 ulp
  c.summation = {sumzero::SummationTree::Kind::sequential};
  c.policies = false;
  return c;
}

const sumzero::Registered softmax{sumzero::RowKernel{
    .op = "softmax", .name = "mine", .summary = "three loops", .f32 = softmax_row, .contract_f32 = contract(), .outputs = {"p"}}};
const sumzero::Registered collapsing{sumzero::RowKernel{.op = "cross_entropy", .name = "mine.collapsing", .summary = "p - onehot",
                                                        .f32 = collapsing_cross_entropy_row, .contract_f32 = contract(),
                                                        .outputs = {"gx"}}};

}  // namespace

int main(int argc, char** argv) { return sumzero::main(argc, argv); }
