// Runs a kernel of TVM's calling convention, `f`, on 64-bit ARM Linux without a C library.
//
// Standard input: the numbers of tensors and of outputs among them (int64), which are the last ones; for each tensor
// its dtype (bytes for kind and bits, int16 for lanes), rank (int32), sizes (int64) and elements. Standard output gets
// the elements of the outputs.
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using size_t = unsigned long;

namespace {

// DLPack's dtype and tensor; TVM's argument and size of a parallel region.
struct Dtype {
  uint8_t kind;
  uint8_t bits;
  int16_t lanes;
};
struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_number;
  int32_t rank;
  Dtype dtype;
  int64_t* sizes;
  int64_t* strides;
  int64_t offset;
};
struct Argument {
  int32_t type;
  int32_t unused;
  union {
    Tensor* tensor;
    int64_t number;
  };
};
struct RegionSize {
  void* barrier;
  int32_t tasks;
};
using Task = int (*)(int32_t number, RegionSize* size, void* closure);

constexpr int32_t kHost = 1;
constexpr int32_t kTensor = 7;
constexpr int kMaxTensors = 64;
constexpr size_t kLine = 64;
// Bytes around tensors that are NaN if read as numbers.
constexpr size_t kBorder = 1024;
constexpr long kRead = 63, kWrite = 64, kExit = 93;

alignas(64) uint8_t memory[size_t{1} << 28];
size_t used = 0;

long Call(long number, long first, long second, long third) {
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = first;
  register long x1 asm("x1") = second;
  register long x2 asm("x2") = third;
  asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}

[[noreturn]] void End(int status, const char* message = "", size_t length = 0) {
  Call(kWrite, 2, reinterpret_cast<long>(message), static_cast<long>(length));
  for (;;) Call(kExit, status, 0, 0);
}

template <size_t kLength>
[[noreturn]] void Fail(const char (&message)[kLength]) {
  End(1, message, kLength - 1);
}

void Transfer(long call, int file, void* data, size_t size) {
  auto* bytes = static_cast<uint8_t*>(data);
  while (size > 0) {
    const long done = Call(call, file, reinterpret_cast<long>(bytes), static_cast<long>(size));
    if (done <= 0) Fail("the input or output ends early\n");
    bytes += done;
    size -= static_cast<size_t>(done);
  }
}

template <typename Value>
Value Read() {
  Value value;
  Transfer(kRead, 0, &value, sizeof(value));
  return value;
}

// Memory between borders; all of it holds NaN.
void* Allocate(size_t size) {
  const size_t start = used + kBorder;
  used = (start + size + kBorder + kLine - 1) / kLine * kLine;
  if (used > sizeof(memory)) Fail("too little memory\n");
  for (size_t i = start - kBorder; i < used; ++i) memory[i] = 0xff;
  return memory + start;
}

size_t ReadTensor(Tensor* tensor) {
  tensor->device_type = kHost;
  tensor->dtype = Read<Dtype>();
  tensor->rank = Read<int32_t>();
  tensor->sizes = static_cast<int64_t*>(Allocate(sizeof(int64_t) * static_cast<size_t>(tensor->rank)));
  size_t bytes = tensor->dtype.bits / 8;
  for (int i = 0; i < tensor->rank; ++i) {
    tensor->sizes[i] = Read<int64_t>();
    bytes *= static_cast<size_t>(tensor->sizes[i]);
  }
  tensor->data = Allocate(bytes);
  Transfer(kRead, 0, tensor->data, bytes);
  return bytes;
}

// The last task first: no kernel may count on an order.
int Launch(Task task, void* closure, int tasks) {
  RegionSize size{nullptr, tasks != 0 ? tasks : 7};
  for (int i = size.tasks; i-- > 0;) {
    if (const int result = task(i, &size, closure)) return result;
  }
  return 0;
}

void* AllocateWorkspace(int, int, size_t bytes, int, int) {
  return Allocate(bytes);
}

int FreeWorkspace(int, int, void*) {
  return 0;
}

}  // namespace

extern "C" {

// The kernel, and the pointers through which it calls the runtime, if it does.
int __tvm_ffi_f(void* self, Argument* arguments, int32_t count, Argument* result);
extern __attribute__((weak)) decltype(&Launch) __TVMBackendParallelLaunch;
extern __attribute__((weak)) decltype(&AllocateWorkspace) __TVMBackendAllocWorkspace;
extern __attribute__((weak)) decltype(&FreeWorkspace) __TVMBackendFreeWorkspace;

void TVMFFIErrorSetRaisedFromCStrParts(const char*, const char** parts, int32_t count) {
  for (int i = 0; i < count; ++i) {
    size_t length = 0;
    while (parts[i][length] != 0) ++length;
    Transfer(kWrite, 2, const_cast<char*>(parts[i]), length);
  }
}

// For large arguments, kernels call the C library, which is not here.
float sinf(float) {
  Fail("a large argument of sin\n");
}
float cosf(float) {
  Fail("a large argument of cos\n");
}
float fmodf(float, float) {
  Fail("a large quotient of fmod\n");
}

void* memset(void* target, int value, size_t size) {
  for (auto* byte = static_cast<volatile uint8_t*>(target); size-- > 0; ++byte) *byte = static_cast<uint8_t>(value);
  return target;
}

void* memcpy(void* target, const void* source, size_t size) {
  auto* to = static_cast<volatile uint8_t*>(target);
  for (auto* from = static_cast<const uint8_t*>(source); size-- > 0; ++from, ++to) *to = *from;
  return target;
}

void Main() {
  if (&__TVMBackendParallelLaunch != nullptr) __TVMBackendParallelLaunch = Launch;
  if (&__TVMBackendAllocWorkspace != nullptr) __TVMBackendAllocWorkspace = AllocateWorkspace;
  if (&__TVMBackendFreeWorkspace != nullptr) __TVMBackendFreeWorkspace = FreeWorkspace;
  static Tensor tensors[kMaxTensors];
  static Argument arguments[kMaxTensors];
  static size_t bytes[kMaxTensors];
  const auto count = Read<int64_t>();
  const auto outputs = Read<int64_t>();
  if (outputs < 0 || outputs > count || count > kMaxTensors) Fail("a wrong number of tensors\n");
  for (int64_t i = 0; i < count; ++i) {
    bytes[i] = ReadTensor(&tensors[i]);
    arguments[i].type = kTensor;
    arguments[i].tensor = &tensors[i];
  }
  Argument result{};
  if (__tvm_ffi_f(nullptr, arguments, static_cast<int32_t>(count), &result) != 0) Fail("\nthe kernel failed\n");
  for (int64_t i = count - outputs; i < count; ++i) Transfer(kWrite, 1, tensors[i].data, bytes[i]);
  End(0);
}

// The stack is aligned as the system leaves it: to 16 bytes.
__attribute__((naked)) void _start() {
  asm volatile("bl Main");
}

}  // extern "C"
