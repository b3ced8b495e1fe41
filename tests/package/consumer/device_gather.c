/* A program of a user of CUDA, in C, with a runtime of its own beside the library's: one rank, so that any GPU will do,
   gathers on device memory in a stream of the program's. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <ulysses/ulysses.h>

enum { kCount = 1000, kSkipped = 77 };

static int fail(const char* call) {
  fprintf(stderr, "%s: %s; %s\n", call, ulyssesGetLastError(), cudaGetErrorString(cudaGetLastError()));
  return 1;
}

int main(void) {
  static float host[kCount];
  float *in, *out;
  cudaStream_t stream;
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  ulyssesComm_t comm;
  int gpus = 0, i;
  cudaError_t found = cudaGetDeviceCount(&gpus);

  if (found != cudaSuccess || gpus == 0) {
    printf("skipped: no GPU (%s)\n", cudaGetErrorString(found));
    return kSkipped;
  }
  config.memory = ulyssesMemoryCuda;
  if (ulyssesCommInitAllConfig(&comm, 1, NULL, &config) != ulyssesSuccess) return fail("ulyssesCommInitAllConfig");
  for (i = 0; i < kCount; ++i) host[i] = (float)i;
  if (cudaStreamCreate(&stream) != cudaSuccess) return fail("cudaStreamCreate");
  if (cudaMalloc((void**)&in, sizeof host) != cudaSuccess) return fail("cudaMalloc");
  if (cudaMalloc((void**)&out, sizeof host) != cudaSuccess) return fail("cudaMalloc");
  cudaMemcpyAsync(in, host, sizeof host, cudaMemcpyHostToDevice, stream);
  if (ulyssesAllGather(in, out, kCount, ulyssesFloat32, comm, stream) != ulyssesSuccess) return fail("ulyssesAllGather");
  for (i = 0; i < kCount; ++i) host[i] = -1;
  cudaMemcpyAsync(host, out, sizeof host, cudaMemcpyDeviceToHost, stream);
  if (cudaStreamSynchronize(stream) != cudaSuccess) return fail("cudaStreamSynchronize");
  for (i = 0; i < kCount; ++i) {
    if (host[i] != (float)i) {
      fprintf(stderr, "element %d: %g\n", i, (double)host[i]);
      return 1;
    }
  }
  return ulyssesCommDestroy(comm) == ulyssesSuccess ? 0 : fail("ulyssesCommDestroy");
}
