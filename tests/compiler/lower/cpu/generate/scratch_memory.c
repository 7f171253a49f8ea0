// The functions by which generated code allocates and frees its scratch memory, filled with signalling NaNs: arithmetic
// with one raises the flag of invalid operations, which a quiet NaN or a number that was written does not.
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef void* (*Allocate)(int, int, uint64_t, int, int);
typedef int (*Free)(int, int, void*);

static Allocate allocate;
static Free release;
static atomic_int invalid;
static _Thread_local int depth;

// The flags of the thread's floating-point operations since the last call; bit 0 is for invalid ones.
static unsigned TakeFlags(void) {
  const unsigned found = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(found & ~0x3fu);
  return found & 0x3fu;
}

void scratch_use(void* allocate_, void* release_) {
  allocate = (Allocate)allocate_;
  release = (Free)release_;
}

// The number of blocks whose threads had invalid operations since the last call.
int scratch_invalid(void) { return atomic_exchange(&invalid, 0); }

void* scratch_allocate(int type, int id, uint64_t bytes, int code, int bits) {
  uint32_t* const found = allocate(type, id, bytes, code, bits);
  if (found == NULL) return NULL;
  for (uint64_t i = 0; i < bytes / sizeof *found; ++i) found[i] = 0x7f812345u;
  if (depth++ == 0) TakeFlags();
  return found;
}

int scratch_free(int type, int id, void* block) {
  if (TakeFlags() & 1u) atomic_fetch_add(&invalid, 1);
  --depth;
  return release(type, id, block);
}
