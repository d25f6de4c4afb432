// Turns an operator's header into a registered reference. Each header in reference/*/ ends with
// SUMZERO_OPERATOR(Type); the build compiles every header once with SUMZERO_REGISTER_REFERENCE defined.
#pragma once

#include "reference/evaluate.hpp"

namespace sumzero {

template <class Operator>
class ReferenceOf final : public OperatorReference {
 public:
  ReferenceOf() { signature_ = Operator::signature(); }
  void row(RowProblem<Ball>& problem) const override { on_widest_vectors([&]() { Operator::row(problem); }); }
  void row(RowProblem<Enclosure>& problem) const override { Operator::row(problem); }
  void row(RowProblem<Arb>& problem) const override { Operator::row(problem); }
};

}  // namespace sumzero

#ifdef SUMZERO_REGISTER_REFERENCE
#define SUMZERO_OPERATOR(Type)                                                              \
  namespace {                                                                               \
  const bool registered_##Type =                                                            \
      (sumzero::Registry::global().add(std::make_unique<sumzero::ReferenceOf<Type>>()), true); \
  }
#else
#define SUMZERO_OPERATOR(Type)
#endif
