// Which instruction sets our kernels are compiled for. Include this before any Highway header, in every
// source file that uses Highway; it is the only place that chooses.
//
// Three targets: AVX3 (Highway's name for AVX-512), AVX2 and SCALAR. All three round a fused multiply-add
// once: the first two in hardware, SCALAR through std::fma (fused-inl.h). The SSE targets have no fused
// multiply-add and would give other bits, so they are off. SCALAR is the baseline whatever -m flags the
// compiler got, so that the list of targets, and with it every result, does not depend on how a user builds.
#pragma once

#if defined(HIGHWAY_HWY_DETECT_TARGETS_H_) && !defined(SUMZERO_SIMD_TARGETS_CHOSEN)
#error "Include fast/math/simd.h before every Highway header: another header already chose the targets"
#endif
#define SUMZERO_SIMD_TARGETS_CHOSEN

#if defined(HWY_COMPILE_ONLY_STATIC) || defined(HWY_COMPILE_ONLY_SCALAR) || \
    defined(HWY_COMPILE_ONLY_EMU128) || defined(HWY_DISABLE_BMI2_FMA)
#error "fast/math/simd.h chooses the SIMD targets: remove HWY_COMPILE_ONLY_* and HWY_DISABLE_BMI2_FMA"
#endif

#ifdef __FAST_MATH__
#error "-ffast-math (or -Ofast) changes the results of these kernels; compile without it"
#endif

// The emulated 128-bit target has no fused multiply-add either; this makes Highway take SCALAR on every
// compiler.
#undef HWY_BROKEN_EMU128
#define HWY_BROKEN_EMU128 1

#undef HWY_BASELINE_TARGETS
#define HWY_BASELINE_TARGETS HWY_SCALAR

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (~(HWY_AVX3 | HWY_AVX2 | HWY_SCALAR))
