// The thread pool of CPU kernels: one per process, shared by all sessions and callers.
//
// A parallel region is cut into more tasks than there are threads. The caller and each worker begin with an equal part
// of them; who is done takes half of what another has left, so that a thread that the operating system holds up delays
// a region by one task only. Regions of different callers run at the same time and compete for the same workers. With a
// caller for every core, each runs its regions alone.
//
// A worker that has nothing to do looks for work for some time and then sleeps. Workers are never bound to cores; one
// that is woken is kept off its caller's until it runs. They hold no lock, have no destructor to run, and end with the
// process. A forked child starts without any.
//
// Threading: all functions may be called from any thread.
#ifndef HETEROCC_CPU_THREAD_POOL_H_
#define HETEROCC_CPU_THREAD_POOL_H_

#include <cstdint>

namespace heterocc::cpu {

// The most threads of a region.
constexpr int kMostThreads = 256;

// The argument of tasks in TVM's generated code (TVMParallelGroupEnv): the number of tasks of the region.
struct RegionSize {
  void* barrier;
  int32_t tasks;
};

// One task of a region (FTVMParallelLambda). Not 0: an error, which is kept for the calling thread by tvm_ffi.
using Task = int (*)(int number, RegionSize* size, void* closure);

// Runs tasks 0 to n - 1 of a region on at most `threads` threads, the caller included, and waits for all of them.
// n is `tasks`, or chosen here if that is 0. A region within a task runs on the thread of that task.
// Returns 0, or the first result that is not 0; its error is then kept for the caller.
int RunRegion(Task task, void* closure, int tasks, int threads);

// How many workers were started in this process.
int Workers();

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_THREAD_POOL_H_
