// kl_forward: distillation loss T^2 KL(softmax(t/T) || softmax(s/T)) of student logits s and teacher logits t.
//
//   ds_i = T (p_i - q_i),  dt_i = -T q_i x_i   (divergence.hpp with base = teacher); without scale_T2 divide all by T^2.
#pragma once

#include "reference/losses/divergence.hpp"

namespace sumzero {

struct KlForward {
  static Signature signature() {
    return distillation_signature("kl_forward", "distillation: KL(teacher || student) with temperature, both gradients");
  }
  template <class N>
  static void row(RowProblem<N>& problem) {
    Divergence<N>& row = thread_scratch<Divergence<N>>();
    divergence<N>(problem.in[1], problem.in[0], problem.n, problem.attribute[0], row);
    write_kl(row, problem, 1, 2);
  }
};

SUMZERO_OPERATOR(KlForward)

}  // namespace sumzero
