// A stand-in for libcudart.so.13: device memory is host memory, streams do everything at once.
#include <cstdlib>
#include <cstring>

extern "C" {

int cudaSetDevice(int) {
  return 0;
}
int cudaGetDevice(int* device) {
  return *device = 0, 0;
}
int cudaGetDeviceCount(int* count) {
  return *count = 1, 0;
}
int cudaGetDeviceProperties(void*, int) {
  return 801;
}
int cudaGetLastError() {
  return 0;
}
int cudaPeekAtLastError() {
  return 0;
}
const char* cudaGetErrorName(int) {
  return "cudaErrorEmulated";
}
const char* cudaGetErrorString(int error) {
  return error == 2 ? "out of memory" : "emulated failure";
}

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  if (attribute == 75) return *value = 9, 0;   // compute capability, major
  if (attribute == 10) return *value = 32, 0;  // warp size
  return *value = 0, 0;
}

int cudaMalloc(void** place, size_t bytes) {
  const char* limit = getenv("EMULATED_MEMORY");
  if (limit && bytes > strtoull(limit, nullptr, 10)) return 2;  // cudaErrorMemoryAllocation
  return posix_memalign(place, 256, bytes ? bytes : 1) ? 2 : 0;
}
int cudaMallocHost(void** place, size_t bytes) {
  return posix_memalign(place, 256, bytes) ? 2 : 0;
}
int cudaFree(void* place) {
  return free(place), 0;
}
int cudaFreeHost(void* place) {
  return free(place), 0;
}
int cudaMemGetInfo(size_t* unused, size_t* total) {
  return *unused = *total = size_t{1} << 30, 0;
}

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  return memcpy(to, from, bytes), 0;
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) {
  return memcpy(to, from, bytes), 0;
}

int cudaStreamCreate(void** stream) {
  return *stream = nullptr, 0;
}
int cudaStreamCreateWithFlags(void** stream, unsigned) {
  return *stream = nullptr, 0;
}
int cudaStreamDestroy(void*) {
  return 0;
}
int cudaStreamSynchronize(void*) {
  return 0;
}
int cudaStreamWaitEvent(void*, void*, unsigned) {
  return 0;
}
int cudaStreamBeginCapture(void*, int) {
  return 801;
}
int cudaStreamEndCapture(void*, void**) {
  return 801;
}
int cudaEventCreate(void** event) {
  return *event = nullptr, 0;
}
int cudaEventDestroy(void*) {
  return 0;
}
int cudaEventElapsedTime(float* ms, void*, void*) {
  return *ms = 0, 0;
}
int cudaEventRecord(void*, void*) {
  return 0;
}
int cudaEventSynchronize(void*) {
  return 0;
}
int cudaGraphDestroy(void*) {
  return 0;
}
int cudaGraphExecDestroy(void*) {
  return 0;
}
int cudaGraphInstantiate(void**, void*, unsigned long long) {
  return 801;
}
int cudaGraphLaunch(void*, void*) {
  return 801;
}

}  // extern "C"
