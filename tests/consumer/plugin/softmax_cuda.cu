// A softmax in CUDA C++, one block a row: nvcc -shared -Xcompiler -fPIC softmax_cuda.cu -o libsoftmax_cuda.so
#include <cuda_runtime.h>
#include <math_constants.h>
#include <oracle/kernel/sumzero_plugin.h>

namespace {

constexpr int threads = 128;
const char* error = "";

__device__ float reduced(float value, bool maximum) {
  __shared__ float shared[threads];
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    const float a = shared[threadIdx.x], b = shared[threadIdx.x + half];
    shared[threadIdx.x] = !maximum ? a + b : isnan(a) || a > b ? a : b;
  }
  __syncthreads();
  return shared[0];
}

__global__ void softmax_rows(const float* x, float* p, int64_t classes) {
  x += blockIdx.x * classes;
  p += blockIdx.x * classes;
  float m = -CUDART_INF_F, sum = 0;
  for (int64_t j = threadIdx.x; j < classes; j += threads) m = isnan(x[j]) || x[j] > m ? x[j] : m;
  m = reduced(m, true);
  for (int64_t j = threadIdx.x; j < classes; j += threads) sum += p[j] = expf(x[j] - m);
  sum = reduced(sum, false);
  for (int64_t j = threadIdx.x; j < classes; j += threads) p[j] /= sum;
}

bool failed(cudaError_t code) {
  if (code != cudaSuccess) error = cudaGetErrorString(code);
  return code != cudaSuccess;
}

int softmax(const sumzero_call* call) {
  const DLTensor *x = sumzero_input(call, "x"), *p = sumzero_output(call, "p");
  const int64_t rows = x->shape[0], classes = x->shape[1];
  float *memory = nullptr, *host = new float[rows * classes];
  const size_t bytes = static_cast<size_t>(rows * classes) * sizeof(float);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < classes; ++j) host[i * classes + j] = static_cast<float*>(x->data)[i * x->strides[0] + j * x->strides[1]];
  bool bad = failed(cudaMalloc(&memory, 2 * bytes)) || failed(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
  if (!bad) softmax_rows<<<static_cast<unsigned>(rows), threads>>>(memory, memory + rows * classes, classes);
  bad = bad || failed(cudaGetLastError()) || failed(cudaMemcpy(host, memory + rows * classes, bytes, cudaMemcpyDeviceToHost));
  for (int64_t i = 0; i < rows && !bad; ++i)
    for (int64_t j = 0; j < classes; ++j) static_cast<float*>(p->data)[i * p->strides[0] + j * p->strides[1]] = host[i * classes + j];
  cudaFree(memory);
  delete[] host;
  return bad ? SUMZERO_FAILED : SUMZERO_OK;
}

const char* last_error() { return error; }

const char* const operators[] = {"softmax", nullptr};
const char* const dtypes[] = {"f32", nullptr};
const char* const outputs[] = {"p", nullptr};
const sumzero_contract contract = {nullptr, 2, 0, 0, "lanes", threads, 0, 0, 0, 0, SUMZERO_YES, 0, 0, 0, nullptr};
const sumzero_plugin table = {SUMZERO_ABI_VERSION, "cuda.softmax", operators, dtypes, outputs, &contract, softmax, last_error};

}  // namespace

extern "C" const sumzero_plugin* sumzero_plugin_table(void) { return &table; }
