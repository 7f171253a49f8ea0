// A stand-in for libcuda.so.1: one device, whose kernels are host functions in the library that EMULATED_KERNELS names.
//
// Enough of the driver's interface for TVM's CUDA runtime. What it is asked for is written to the file that
// EMULATED_LOG names. Threads of a block are fibers, so that barriers work; blocks run one after another.
#include <dlfcn.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Dim {
  unsigned x, y, z;
};

struct LaunchConfig {  // CUlaunchConfig of cuda.h
  Dim grid, block;
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

void note(const std::string& line) {
  if (const char* path = getenv("EMULATED_LOG")) {
    FILE* file = fopen(path, "a");
    fprintf(file, "%s\n", line.c_str());
    fclose(file);
  }
}

constexpr size_t kStack = 64 * 1024;
ucontext_t scheduler;
std::vector<ucontext_t> fibers;
std::vector<std::vector<char>> stacks;
std::vector<bool> done;
size_t current;
void (*kernel)(void**);
void** arguments;

void fiber() {
  kernel(arguments);
  done[current] = true;
}

}  // namespace

extern "C" {

Dim emulated_thread, emulated_block, emulated_block_size, emulated_grid_size;

void emulated_barrier() {
  swapcontext(&fibers[current], &scheduler);
}

int cuInit(unsigned) {
  return number("EMULATED_INIT", 0);
}
int cuDriverGetVersion(int* version) {
  return *version = number("EMULATED_VERSION", 13000), 0;
}
int cuDeviceGetCount(int* count) {
  return *count = number("EMULATED_COUNT", 1), 0;
}
int cuDeviceGet(int* device, int index) {
  return *device = index, 0;
}
int cuDeviceGetName(char* name, int size, int) {
  return snprintf(name, size, "Emulated GPU"), 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  return *bytes = size_t{1} << 30, 0;
}
int cuGetErrorString(int, const char** text) {
  return *text = "emulated failure", 0;
}
int cuGetErrorName(int, const char** text) {
  return *text = "EMULATED_FAILURE", 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 1:
      return *value = 1024, 0;
    case 8:
      return *value = 48 * 1024, 0;
    case 13:
      return *value = 1500000, 0;
    case 16:
      return *value = 8, 0;
    case 36:
      return *value = 2000000, 0;
    case 37:
      return *value = 256, 0;
    case 75:
      return *value = number("EMULATED_MAJOR", 9), 0;
    case 76:
      return *value = number("EMULATED_MINOR", 0), 0;
    default:
      return *value = 0, 0;
  }
}

int cuModuleLoadData(void** module, const void* image) {
  auto bytes = static_cast<const unsigned char*>(image);
  uint32_t flags;
  memcpy(&flags, bytes + 48, 4);
  char line[80];
  snprintf(line, sizeof line, "load elf=%d arch=%u",
           !memcmp(bytes,
                   "\x7f"
                   "ELF",
                   4),
           (flags >> 8) & 0xff);
  note(line);
  const char* path = getenv("EMULATED_KERNELS");
  *module = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!*module) note(std::string("no kernels: ") + (path ? dlerror() : "EMULATED_KERNELS is not set"));
  return *module ? 0 : 209;  // CUDA_ERROR_NO_BINARY_FOR_GPU
}

int cuModuleUnload(void*) {
  return 0;
}
int cuFuncSetAttribute(void*, int, int) {
  return 0;
}
int cuTensorMapEncodeTiled() {
  return 801;
}  // CUDA_ERROR_NOT_SUPPORTED

int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = dlsym(module, (std::string("call_") + name).c_str());
  return *function ? 0 : 500;  // CUDA_ERROR_NOT_FOUND
}

int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void**) {
  note("launch");
  kernel = reinterpret_cast<void (*)(void**)>(function);
  arguments = parameters;
  emulated_block_size = config->block;
  emulated_grid_size = config->grid;
  size_t count = size_t{config->block.x} * config->block.y * config->block.z;
  fibers.resize(count);
  stacks.resize(count);
  for (auto& stack : stacks) stack.resize(kStack);
  Dim& at = emulated_block;
  for (at.z = 0; at.z < config->grid.z; ++at.z)
    for (at.y = 0; at.y < config->grid.y; ++at.y)
      for (at.x = 0; at.x < config->grid.x; ++at.x) {
        done.assign(count, false);
        for (size_t i = 0; i < count; ++i) {
          getcontext(&fibers[i]);
          fibers[i].uc_stack.ss_sp = stacks[i].data();
          fibers[i].uc_stack.ss_size = kStack;
          fibers[i].uc_link = &scheduler;
          makecontext(&fibers[i], fiber, 0);
        }
        for (bool left = true; left;) {
          left = false;
          for (current = 0; current < count; ++current) {
            if (done[current]) continue;
            unsigned i = static_cast<unsigned>(current);
            emulated_thread = {i % config->block.x, i / config->block.x % config->block.y,
                               i / (config->block.x * config->block.y)};
            swapcontext(&scheduler, &fibers[current]);
            left = left || !done[current];
          }
        }
      }
  return 0;
}

}  // extern "C"
