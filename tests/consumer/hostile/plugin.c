/* Plug-ins that misbehave: cc -DMODE_... ; every mode is an ordinary softmax of the first row otherwise. */
#include <oracle/kernel/sumzero_plugin.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int run(const sumzero_call* call) {
  const DLTensor *x = sumzero_input(call, "x"), *p = sumzero_output(call, "p");
  float* in = (float*)x->data;
  float* out = (float*)p->data;
#if defined(MODE_CRASH)
  raise(SIGSEGV);
#elif defined(MODE_HANG)
  for (;;) sleep(1);
#elif defined(MODE_EXIT)
  exit(5);
#elif defined(MODE_ERROR)
  return SUMZERO_FAILED;
#elif defined(MODE_REFUSE)
  return SUMZERO_REFUSED;
#elif defined(MODE_MEMORY)
  for (;;) {
    char* block = malloc(1 << 26);
    if (!block) {
      fprintf(stderr, "out of memory\n");
      abort();
    }
    memset(block, 1, 1 << 26);
  }
#elif defined(MODE_MUTATE)
  in[0] = 1;
#elif defined(MODE_PRINT)
  printf("hello from the plug-in\n");
  fflush(stdout);
#endif
  for (int64_t i = 0; i < p->shape[0]; ++i)
    for (int64_t j = 0; j < p->shape[1]; ++j) {
#if defined(MODE_UNWRITTEN)
      if (i == p->shape[0] - 1 && j == p->shape[1] - 1) continue;
#endif
      out[i * p->strides[0] + j * p->strides[1]] = 1.0f / (float)p->shape[1];
    }
#if defined(MODE_OVERRUN)
  out[(p->shape[0] - 1) * p->strides[0] + p->shape[1]] = 1;
#endif
  (void)in;
  return SUMZERO_OK;
}

static const char* last_error(void) { return "the device is on strike"; }

static const char* const operators[] = {"softmax", NULL};
static const char* const dtypes[] = {"f32", NULL};
static const char* const outputs[] = {"p", NULL};
static const sumzero_plugin table = {
#if defined(MODE_VERSION)
    .abi_version = 99,
#else
    .abi_version = SUMZERO_ABI_VERSION,
#endif
    .name = "hostile", .operators = operators, .dtypes = dtypes, .outputs = outputs, .contract = NULL, .run = run, .last_error = last_error};

#if defined(MODE_SYMBOL)
const sumzero_plugin* another_name(void) { return &table; }
#else
const sumzero_plugin* sumzero_plugin_table(void) { return &table; }
#endif
