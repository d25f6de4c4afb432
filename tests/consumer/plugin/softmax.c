/* A softmax in a shared library, C99: cc -shared -fPIC -O2 softmax.c -o libsoftmax.so -lm */
#include <math.h>
#include <oracle/kernel/sumzero_plugin.h>

static int softmax(const sumzero_call* call) {
  const DLTensor *x = sumzero_input(call, "x"), *p = sumzero_output(call, "p");
  for (int64_t row = 0; row < x->shape[0]; ++row) {
    const float* in = (const float*)x->data + row * x->strides[0];
    float* out = (float*)p->data + row * p->strides[0];
    float m = in[0], sum = 0;
    for (int64_t j = 1; j < x->shape[1]; ++j) {
      const float v = in[j * x->strides[1]];
      if (v > m || isnan(v)) m = v;
    }
    for (int64_t j = 0; j < x->shape[1]; ++j) sum += out[j * p->strides[1]] = expf(in[j * x->strides[1]] - m);
    for (int64_t j = 0; j < x->shape[1]; ++j) out[j * p->strides[1]] /= sum;
  }
  return SUMZERO_OK;
}

static const char* const operators[] = {"softmax", NULL};
static const char* const dtypes[] = {"f32", NULL};
static const char* const outputs[] = {"p", NULL};
static const sumzero_contract contract = {.exp_error = 2, .summation = "sequential", .deterministic = SUMZERO_YES};
static const sumzero_plugin table = {.abi_version = SUMZERO_ABI_VERSION, .name = "plugin.softmax", .operators = operators,
                                     .dtypes = dtypes, .outputs = outputs, .contract = &contract, .run = softmax};

const sumzero_plugin* sumzero_plugin_table(void) { return &table; }
