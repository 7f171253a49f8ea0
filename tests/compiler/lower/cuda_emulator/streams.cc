// Streams, events, contexts and memory of the stand-in for libcuda.so.1.
//
// A stream is as late as CUDA allows: its commands run only when they are waited for, by way of events or of
// the stream itself. So a wait that is missing is a wrong number. Copies from memory that is not page-locked take the
// bytes at once, and copies to it are done before the call is over, as with CUDA.
#include "streams.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace {

constexpr int kInvalidHandle = 400;
constexpr int kInvalidContext = 201;

struct Work {
  std::string what;
  std::function<void()> run;
  const char* host = nullptr;  // page-locked memory that it touches
};

struct Stream {
  int device;
  int number;
  std::deque<Work> waiting;
  size_t given = 0, done = 0;
};

struct Event {
  int device;
  int number;
  Stream* stream = nullptr;
  size_t place = 0;
};

struct Block {
  size_t bytes;
  bool on_device;
};

std::recursive_mutex lock;
std::map<const char*, Block> blocks;
std::map<int, Stream*> defaults;
std::set<int> contexts;
std::vector<Stream*> streams;
int events = 0;
int broken = 0;
thread_local int current = -1;

using Lock = std::lock_guard<std::recursive_mutex>;

void run_until(Stream* stream, size_t place) {
  while (stream->done < place) {
    Work work = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    if (!broken) work.run();
    ++stream->done;
  }
}

Stream* new_stream(int device) {
  streams.push_back(new Stream{device, static_cast<int>(streams.size())});
  return streams.back();
}

Stream* found(void* handle) {
  if (handle) return static_cast<Stream*>(handle);
  Stream*& stream = defaults[emulated::current_device()];
  if (!stream) stream = new Stream{emulated::current_device(), -1};
  return stream;
}

std::string name_of(const Stream* stream) {
  return stream->number < 0 ? "the default stream" : "s" + std::to_string(stream->number);
}

std::string name_of(const Event* event) {
  return "e" + std::to_string(event->number);
}

const std::pair<const char* const, Block>* block_of(const void* place) {
  auto after = blocks.upper_bound(static_cast<const char*>(place));
  if (after == blocks.begin()) return nullptr;
  --after;
  return static_cast<const char*>(place) < after->first + after->second.bytes ? &*after : nullptr;
}

int give(Stream* stream, Work work) {
  if (broken) return broken;
  if (stream->number >= 0 && stream->device != emulated::current_device()) return kInvalidHandle;
  emulated::note(work.what + " on " + name_of(stream));
  stream->waiting.push_back(std::move(work));
  ++stream->given;
  return 0;
}

void make_context(int device) {
  Lock held(lock);
  if (contexts.insert(device).second) emulated::note("context of device " + std::to_string(device));
}

}  // namespace

namespace emulated {

int sticky() {
  return broken;
}
void fail_for_good(int error) {
  broken = error;
}

int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

void note(const std::string& line) {
  Lock held(lock);
  if (const char* path = getenv("EMULATED_LOG")) {
    FILE* file = fopen(path, "a");
    fprintf(file, "%s\n", line.c_str());
    fclose(file);
  }
}

int current_device() {
  return current < 0 ? 0 : current;
}
void use_device(int device) {
  current = device;
  make_context(device);
}

int enqueue(void* stream, const std::string& what, std::function<void()> work) {
  Lock held(lock);
  return give(found(stream), {what, std::move(work)});
}

void drain_all() {
  Lock held(lock);
  for (auto& [device, stream] : defaults) run_until(stream, stream->given);
  for (Stream* stream : streams) run_until(stream, stream->given);
}

void* allocate(size_t bytes, bool on_device) {
  Lock held(lock);
  bytes = bytes ? bytes : 1;
  void* place = nullptr;
  if (posix_memalign(&place, 256, bytes)) return nullptr;
  memset(place, 0xff, bytes);
  blocks[static_cast<char*>(place)] = {bytes, on_device};
  return place;
}

void release(void* place) {
  Lock held(lock);
  auto block = blocks.find(static_cast<char*>(place));
  if (block == blocks.end()) return;
  auto in_use = [&](const Work& work) {
    return work.host && work.host >= block->first && work.host < block->first + block->second.bytes;
  };
  std::vector<Stream*> all = streams;
  for (auto& [device, stream] : defaults) all.push_back(stream);
  for (Stream* stream : all)
    for (const Work& work : stream->waiting)
      if (in_use(work)) note("page-locked memory is freed while used by " + work.what);
  drain_all();
  memset(place, 0xff, block->second.bytes);
  blocks.erase(block);
  free(place);
}

}  // namespace emulated

extern "C" {

int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void* handle) {
  Lock held(lock);
  auto target = reinterpret_cast<char*>(to);
  auto source = reinterpret_cast<const char*>(from);
  auto block_to = block_of(target), block_from = block_of(source);
  bool in = !block_from || !block_from->second.on_device, out = !block_to || !block_to->second.on_device;
  std::string what = in && out ? "copy on the host" : in ? "copy in" : out ? "copy out" : "copy between devices";
  Work work{what, [=] { memcpy(target, source, bytes); }};
  if (in && !block_from) {
    auto taken = std::make_shared<std::vector<char>>(source, source + bytes);
    work = {what + " (pageable)", [=] { memcpy(target, taken->data(), bytes); }};
  } else if (out && !block_to) {
    work.what += " (pageable)";
  }
  work.host = in && block_from ? source : out && block_to ? target : nullptr;
  Stream* stream = found(handle);
  int error = give(stream, std::move(work));
  if (!error && out && !block_to) run_until(stream, stream->given);
  return error ? error : broken;
}

int cuStreamCreate(void** stream, unsigned) {
  Lock held(lock);
  if (current < 0) return kInvalidContext;
  return *stream = new_stream(current), broken;
}
int cuStreamDestroy_v2(void* handle) {
  Lock held(lock);
  auto stream = static_cast<Stream*>(handle);
  if (!stream->waiting.empty()) emulated::note(name_of(stream) + " is destroyed with work to do");
  run_until(stream, stream->given);
  return broken;
}
int cuStreamSynchronize(void* handle) {
  Lock held(lock);
  Stream* stream = found(handle);
  emulated::note("wait for " + name_of(stream));
  run_until(stream, stream->given);
  return broken;
}
int cuStreamWaitEvent(void* handle, void* recorded, unsigned) {
  Lock held(lock);
  auto event = static_cast<Event*>(recorded);
  auto [stream, place] = std::pair(event->stream, event->place);
  if (!stream) return broken;
  Stream* waiting = found(handle);
  int here = current;
  current = waiting->device;  // a stream may wait for an event of another device
  int error = give(waiting, {name_of(event) + " holds back what follows", [=] { run_until(stream, place); }});
  return current = here, error;
}

int cuEventCreate(void** event, unsigned) {
  Lock held(lock);
  if (current < 0) return kInvalidContext;
  return *event = new Event{current, events++}, broken;
}
int cuEventDestroy_v2(void* event) {
  return delete static_cast<Event*>(event), broken;
}
int cuEventRecord(void* handle, void* where) {
  Lock held(lock);
  auto event = static_cast<Event*>(handle);
  Stream* stream = found(where);
  if (event->device != stream->device) return kInvalidHandle;
  emulated::note(name_of(event) + " marks " + name_of(stream));
  event->stream = stream;
  event->place = stream->given;
  return broken;
}
int cuEventSynchronize(void* handle) {
  Lock held(lock);
  auto event = static_cast<Event*>(handle);
  emulated::note("wait for " + name_of(event));
  if (event->stream) run_until(event->stream, event->place);
  return broken;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  return make_context(device), *context = reinterpret_cast<void*>(intptr_t{device + 1}), broken;
}
int cuCtxGetCurrent(void** context) {
  return *context = reinterpret_cast<void*>(intptr_t{current + 1}), 0;
}
int cuCtxSetCurrent(void* context) {
  return current = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1, 0;
}

}  // extern "C"
