/* Kernels in a shared library: `sumzero fuzz softmax --kernel ./libmine.so`.
 *
 * The library exports sumzero_plugin_table(). It is loaded in a process of its own, so a crash or a hang costs one case. Tensors
 * are DLPack's (in memory of the CPU: data is the first element, byte_offset is 0, strides count elements and may be 0 or
 * negative); read inputs, write outputs in place, touch nothing else. Calls come one at a time, from one thread.
 * Standard output is redirected to standard error. C99.
 */
#ifndef SUMZERO_PLUGIN_H
#define SUMZERO_PLUGIN_H

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SUMZERO_ABI_VERSION 1u

/* Type codes that DLPack 0.6 does not have, as later versions define them. */
enum { SUMZERO_BOOL = 6, SUMZERO_E4M3FN = 10, SUMZERO_E5M2 = 12 };

enum { SUMZERO_OK = 0, SUMZERO_REFUSED = 1, SUMZERO_FAILED = 2 };

/* A promise about the kernel; zero means unknown. */
enum { SUMZERO_UNKNOWN = 0, SUMZERO_NO = 1, SUMZERO_YES = 2 };

typedef struct {
  const char* accumulator;  /* "f32", "f64", ...; NULL: the one that belongs to the dtype (f32 for 16-bit dtypes) */
  double exp_error, log_error, expm1_error; /* relative errors in units of u of the accumulator; 0: unknown */
  const char* summation;    /* sequential, pairwise, lanes, compensated; NULL: unknown */
  int summation_width;      /* lanes: independent accumulators */
  int summation_flush_every;/* lanes: additions after which an accumulator goes into a pairwise cascade; 0: never */
  int flush_to_zero, compensated_shift, reciprocal, deterministic, monotone, policies, stores_intermediates;
  const char* note;         /* or NULL */
} sumzero_contract;

typedef struct {
  const char* name;
  DLTensor tensor;
} sumzero_tensor;

typedef struct {
  const char* name;
  double value;             /* 0 where the attribute is a choice */
  const char* choice;       /* the name of the choice; NULL for a number */
  int changed;              /* differs from the operator's default */
} sumzero_attribute;

typedef struct {
  const char* op;           /* for example "softmax" */
  const char* dtype;        /* f64, f32, bf16, f16, e4m3, e5m2 */
  int threads;
  size_t inputs, outputs, attributes;  /* lengths of the lists */
  const sumzero_tensor* input;         /* optional inputs that are absent are not listed */
  const sumzero_tensor* output;        /* the offered ones; rows may be padded */
  const sumzero_attribute* attribute;  /* all of the operator's */
} sumzero_call;

typedef struct {
  uint32_t abi_version;           /* SUMZERO_ABI_VERSION */
  const char* name;               /* of the kernel, in reports */
  const char* const* operators;   /* lists end with NULL; names as in `sumzero list` */
  const char* const* dtypes;
  const char* const* outputs;     /* NULL: all of each operator */
  const sumzero_contract* contract;  /* NULL: all unknown */
  int (*run)(const sumzero_call* call);  /* SUMZERO_OK, SUMZERO_REFUSED or SUMZERO_FAILED */
  const char* (*last_error)(void);       /* one sentence on the last refusal or failure; may be NULL */
} sumzero_plugin;

/* The one symbol that the library exports. The table lives as long as the library. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const sumzero_plugin* sumzero_plugin_table(void);

/* The tensor of that name, or NULL when the case does not have it. */
static inline const DLTensor* sumzero_input(const sumzero_call* call, const char* name) {
  for (size_t i = 0; i < call->inputs; ++i)
    if (strcmp(call->input[i].name, name) == 0) return &call->input[i].tensor;
  return NULL;
}

static inline const DLTensor* sumzero_output(const sumzero_call* call, const char* name) {
  for (size_t i = 0; i < call->outputs; ++i)
    if (strcmp(call->output[i].name, name) == 0) return &call->output[i].tensor;
  return NULL;
}

/* Number of an attribute; `otherwise` when the operator has none of that name. */
static inline double sumzero_value(const sumzero_call* call, const char* name, double otherwise) {
  for (size_t i = 0; i < call->attributes; ++i)
    if (strcmp(call->attribute[i].name, name) == 0) return call->attribute[i].value;
  return otherwise;
}

/* Whether an attribute is this choice. */
static inline int sumzero_chose(const sumzero_call* call, const char* name, const char* choice) {
  for (size_t i = 0; i < call->attributes; ++i)
    if (strcmp(call->attribute[i].name, name) == 0) return call->attribute[i].choice && strcmp(call->attribute[i].choice, choice) == 0;
  return 0;
}

#ifdef __cplusplus
}
#endif
#endif
