#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "denormals.h"

namespace heterocc::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// The time for which an idle worker polls before it sleeps: longer than the serial code between two kernels of a
// model. Waking it costs its caller a system call, and the region the time until it runs.
constexpr std::chrono::microseconds kWorkerSpin{200};
// The time for which a caller polls for the end of the last tasks before it sleeps.
constexpr std::chrono::microseconds kCallerSpin{50};
// Callers that may have regions at the same time; those beyond run theirs alone.
constexpr int kRegions = 64;
constexpr int kMaxWorkers = 1023;
// Processors from where on a woken worker most likely finds an idle one by itself.
constexpr int kManyProcessors = 16;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `done()` or for about `limit`; whether it is done.
template <typename Done>
bool Spin(std::chrono::microseconds limit, Done done) {
  // The clock is read every 32 rounds: a round takes some nanoseconds, a reading about 20.
  const Clock::time_point end = Clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return done();
}

template <typename Word>
void SleepWhile(std::atomic<Word>* word, Word value) {
  static_assert(sizeof(*word) == 4);
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

template <typename Word>
void Wake(std::atomic<Word>* word, int threads) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// A thread's part of a region's tasks, on a cache line of its own: taking a task touches no line of another thread.
struct alignas(64) Share {
  std::atomic<uint64_t> tasks{0};  // the next one, and in the upper half the end; empty if the next is not below it
  std::atomic<bool> taken{false};  // a worker is in the region, with this share
};

constexpr uint64_t Range(uint32_t next, uint32_t end) {
  return static_cast<uint64_t>(end) << 32 | next;
}

constexpr uint32_t Next(uint64_t range) {
  return static_cast<uint32_t>(range);
}

constexpr uint32_t End(uint64_t range) {
  return static_cast<uint32_t>(range >> 32);
}

// A region under way. Slots are used again and again; a worker may look into one at any time.
struct alignas(64) Region {
  std::atomic<bool> taken{false};  // a caller has the slot
  std::atomic<bool> open{false};   // there may be tasks left: workers may enter
  Task task = nullptr;
  void* closure = nullptr;
  RegionSize size{nullptr, 0};
  FloatMode mode = 0;           // the caller's: its kernels compute alike in each thread
  std::atomic<int> threads{0};  // that share the tasks: the caller has the first share

  alignas(64) std::atomic<bool> awaited{false};  // the caller sleeps until all workers have left
  std::atomic<uint32_t> left{0};                 // changes when a worker leaves a caller that sleeps
  std::atomic<int> result{0};
  std::atomic<void*> error{nullptr};
  Share shares[kMostThreads];
};

Region regions[kRegions];
std::atomic<int> used_regions{0};  // slots ever used: how far workers must look
// Changes whenever a region opens.
alignas(64) std::atomic<uint32_t> opened{0};
alignas(64) std::atomic<int32_t> sleepers{0};
std::atomic<int> workers{0};
struct Worker {
  pthread_t thread;
  std::atomic<bool> asleep{false};
  std::atomic<bool> kept_away{false};  // from the processor of the caller that wakes it, until it has woken
};
Worker all_workers[kMaxWorkers];
pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
// The region that this thread works on.
thread_local Region* current = nullptr;
// Threads that are in a region which they started, and whether this thread is one of them.
alignas(64) std::atomic<int32_t> callers{0};
thread_local bool calling = false;

void KeepError(Region* region, int result) {
  int none = 0;
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (region->result.compare_exchange_strong(none, result)) {
    region->error.store(error);
  } else if (error != nullptr) {
    TVMFFIObjectDecRef(error);
  }
}

// Takes the second half of the tasks that another thread has left, into a share that has none. Whether there were any.
bool Steal(Region* region, int self, int threads) {
  for (int i = 1; i < threads; ++i) {
    std::atomic<uint64_t>& other = region->shares[(self + i) % threads].tasks;
    uint64_t range = other.load(std::memory_order_relaxed);
    while (Next(range) < End(range)) {
      const uint32_t middle = End(range) - (End(range) - Next(range) + 1) / 2;
      if (!other.compare_exchange_weak(range, Range(Next(range), middle), std::memory_order_relaxed)) continue;
      region->shares[self].tasks.store(Range(middle, End(range)), std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

// Runs a share of a region's tasks, in order, then what others have left. A thread thus tends to get the same part of
// every kernel's loop, whose data its own caches hold.
void Work(Region* region, int self) {
  current = region;
  const int threads = region->threads.load(std::memory_order_relaxed);
  std::atomic<uint64_t>& own = region->shares[self].tasks;
  do {
    for (;;) {
      const uint64_t range = own.fetch_add(1, std::memory_order_relaxed);
      if (Next(range) >= End(range)) break;
      RegionSize size = region->size;
      const int result = region->task(static_cast<int>(Next(range)), &size, region->closure);
      if (result != 0) KeepError(region, result);
    }
  } while (Steal(region, self, threads));
  current = nullptr;
}

// Takes tasks of a region if it is open and a share is free.
bool Help(Region* region, int worker) {
  if (!region->open.load(std::memory_order_relaxed)) return false;
  const int threads = region->threads.load(std::memory_order_relaxed);
  for (int i = 0; i + 1 < threads; ++i) {
    const int number = 1 + (worker + i) % (threads - 1);
    Share& share = region->shares[number];
    if (share.taken.load(std::memory_order_relaxed) || share.taken.exchange(true)) continue;
    // In this order: a worker that has a share and sees an open region may read it until it gives the share back,
    // because the caller closes the region first and then waits until no share is taken. Until here another caller may
    // have opened it, with fewer threads.
    const bool entered = region->open.load() && number < region->threads.load(std::memory_order_relaxed);
    if (entered) {
      SetMode(region->mode);  // of a thread that runs nothing but tasks
      Work(region, number);
      region->open.store(false);  // nobody else finds tasks
    }
    share.taken.store(false);
    if (region->awaited.load()) {
      region->left.fetch_add(1);
      Wake(&region->left, 1);
    }
    return entered;
  }
  return false;
}

void* RunWorker(void* number) {
  const auto start = static_cast<int>(reinterpret_cast<intptr_t>(number));
  Worker* const self = &all_workers[start];
  cpu_set_t allowed;
  const bool known = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  for (;;) {
    const uint32_t seen = opened.load();
    bool helped = false;
    const int count = used_regions.load(std::memory_order_acquire);
    for (int i = 0; i < count; ++i) helped |= Help(&regions[(start + i) % count], start);
    if (self->kept_away.load(std::memory_order_relaxed) && self->kept_away.exchange(false) && known) {
      sched_setaffinity(0, sizeof(allowed), &allowed);
    }
    if (helped) continue;
    if (Spin(kWorkerSpin, [seen] { return opened.load(std::memory_order_relaxed) != seen; })) continue;
    self->asleep.store(true);
    sleepers.fetch_add(1);
    SleepWhile(&opened, seen);
    sleepers.fetch_sub(1);
    self->asleep.store(false);
  }
  return nullptr;
}

// A child has none of its parent's workers, and regions of other threads never end there.
void ForgetAll() {
  workers.store(0);
  sleepers.store(0);
  for (Worker& worker : all_workers) {
    worker.asleep.store(false);
    worker.kept_away.store(false);
  }
  callers.store(calling ? 1 : 0);
  pthread_mutex_init(&starting, nullptr);
  const int used = used_regions.load();
  for (int i = 0; i < used; ++i) {
    Region& region = regions[i];
    for (Share& share : region.shares) share.taken.store(false);
    region.awaited.store(false);
    if (&region == current) continue;
    region.open.store(false);
    region.taken.store(false);
  }
}

// Starts workers until there are `count`, as far as the system allows.
void StartWorkers(int count) {
  count = std::min(count, kMaxWorkers);
  if (workers.load(std::memory_order_relaxed) >= count) return;
  pthread_mutex_lock(&starting);
  static const int registered = pthread_atfork(nullptr, nullptr, ForgetAll);
  // Signals are blocked in workers: handlers of the application expect its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (registered == 0 && workers.load() < count) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    const int failed =
        pthread_create(&thread, &attributes, RunWorker, reinterpret_cast<void*>(static_cast<intptr_t>(workers.load())));
    pthread_attr_destroy(&attributes);
    if (failed == 0) all_workers[workers.load()].thread = thread;
    if (failed != 0) break;  // fewer threads than asked for do the same work
    pthread_setname_np(thread, "heterocc");
    workers.fetch_add(1);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_mutex_unlock(&starting);
}

// Wakes `count` workers, on other processors than the caller's. If all others are busy, be it with threads that only
// look for work, the system tends to wake a thread where its waker runs: it would wait there until the region is over.
void WakeElsewhere(int count) {
  cpu_set_t others;
  const int here = sched_getcpu();
  if (here >= 0 && here < CPU_SETSIZE && sched_getaffinity(0, sizeof(others), &others) == 0) {
    CPU_CLR(here, &others);
    const int processors = CPU_COUNT(&others);
    for (int i = 0; processors > 0 && processors < kManyProcessors && i < std::min(count, workers.load()); ++i) {
      Worker& worker = all_workers[i];
      if (!worker.asleep.load()) continue;
      worker.kept_away.store(true);
      pthread_setaffinity_np(worker.thread, sizeof(others), &others);
    }
  }
  Wake(&opened, count);
}

Region* TakeRegion() {
  for (int i = 0; i < kRegions; ++i) {
    if (regions[i].taken.load(std::memory_order_relaxed) || regions[i].taken.exchange(true)) continue;
    int used = used_regions.load();
    while (used <= i && !used_regions.compare_exchange_weak(used, i + 1)) {
    }
    return &regions[i];
  }
  return nullptr;
}

// Closes a region and waits until all workers have left it.
void Close(Region* region) {
  region->open.store(false);
  const int threads = region->threads.load(std::memory_order_relaxed);
  int number = 1;  // the first share that may be taken still
  const auto all_left = [region, threads, &number] {
    while (number < threads && !region->shares[number].taken.load()) ++number;
    return number == threads;
  };
  if (all_left() || Spin(kCallerSpin, all_left)) return;
  region->awaited.store(true);
  for (;;) {
    const uint32_t left = region->left.load();
    if (all_left()) break;
    SleepWhile(&region->left, left);
  }
  region->awaited.store(false);
}

int RunAlone(Task task, void* closure, int tasks) {
  RegionSize size{nullptr, std::max(tasks, 1)};
  for (int i = 0; i < size.tasks; ++i) {
    if (const int result = task(i, &size, closure)) return result;
  }
  return 0;
}

// The cores that the process may use, as far as the first caller could.
int Cores() {
  static const int cores = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : CPU_SETSIZE;
  }();
  return cores;
}

// The threads that a region may use with so many callers at work, this one included. When there is a caller for every
// core, help would come from a thread that shares its core: the region would wait whenever that thread is not running.
int ThreadsFor(int wanted, int callers) {
  return std::min(wanted, 1 + std::max(wanted, Cores()) - callers);
}

int RunShared(Task task, void* closure, int tasks, int threads) {
  Region* region = threads > 1 ? TakeRegion() : nullptr;
  if (region == nullptr) return RunAlone(task, closure, tasks);
  threads = std::min(threads, kMostThreads);
  region->task = task;
  region->closure = closure;
  region->mode = CurrentMode();
  // Generated code deals a loop out in equal parts of whole iterations and leaves the last tasks without any: the more
  // tasks, the finer the parts, at some ten nanoseconds a task.
  region->size.tasks = tasks != 0 ? tasks : 24 + 4 * threads;
  region->threads.store(threads, std::memory_order_relaxed);
  const auto start = [region, threads](int share) {
    return static_cast<uint32_t>(static_cast<int64_t>(region->size.tasks) * share / threads);
  };
  for (int i = 0; i < threads; ++i) {
    region->shares[i].tasks.store(Range(start(i), start(i + 1)), std::memory_order_relaxed);
  }
  region->result.store(0, std::memory_order_relaxed);
  region->error.store(nullptr, std::memory_order_relaxed);
  region->open.store(true);
  opened.fetch_add(1);
  if (sleepers.load() != 0) WakeElsewhere(threads - 1);
  Work(region, 0);
  Close(region);
  const int result = region->result.load();
  void* error = region->error.load();
  region->taken.store(false);
  if (error != nullptr) {
    TVMFFIErrorSetRaised(error);
    TVMFFIObjectDecRef(error);
  }
  return result;
}

}  // namespace

int RunRegion(Task task, void* closure, int tasks, int threads) {
  if (threads <= 1 || tasks == 1 || calling || current != nullptr) return RunAlone(task, closure, tasks);
  StartWorkers(threads - 1);
  calling = true;
  const int result = RunShared(task, closure, tasks, ThreadsFor(threads, callers.fetch_add(1) + 1));
  callers.fetch_sub(1);
  calling = false;
  return result;
}

int Workers() {
  return workers.load();
}

}  // namespace heterocc::cpu
