#include "socket_pairs.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Bytes that are received at a time, and so the most that wait to be sent in one direction.
constexpr size_t kPart = 1 << 16;

constexpr int kEvents = 64;
constexpr int kWaitMilliseconds = 500;  // between looks at the clock

struct End {
  int descriptor;
  std::vector<char> rest;    // received from the other end, and not sent yet
  Clock::time_point waited;  // since when the rest is there
  bool watched = true;
};

struct Pair {
  End ends[2];
  std::chrono::duration<double> patience;
  int ended;
  int64_t number;
};

class Passing {
 public:
  int32_t Add(std::unique_ptr<Pair> pair) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (poll_ < 0) {
      poll_ = epoll_create1(EPOLL_CLOEXEC);
      if (poll_ < 0) return errno;
      std::thread([this] { Run(); }).detach();
    }
    const uint64_t key = next_++;
    for (int side : {0, 1}) {
      epoll_event event{EPOLLIN, {}};
      event.data.u64 = key << 1 | side;
      if (epoll_ctl(poll_, EPOLL_CTL_ADD, pair->ends[side].descriptor, &event)) {
        const int error = errno;
        if (side) epoll_ctl(poll_, EPOLL_CTL_DEL, pair->ends[0].descriptor, nullptr);
        return error;
      }
    }
    pairs_.emplace(key, std::move(pair));
    return 0;
  }

 private:
  void Run() {
    std::vector<char> buffer(kPart);
    epoll_event events[kEvents];
    Clock::time_point looked = Clock::now();
    while (true) {
      const int count = epoll_wait(poll_, events, kEvents, kWaitMilliseconds);
      std::lock_guard<std::mutex> lock(mutex_);
      for (int index = 0; index < count; ++index) {
        const uint64_t key = events[index].data.u64 >> 1;
        const int side = events[index].data.u64 & 1;
        const auto found = pairs_.find(key);
        if (found != pairs_.end() && !Pass(key, found->second.get(), side, events[index].events, &buffer))
          Finish(found);
      }
      if (Clock::now() - looked > std::chrono::milliseconds(kWaitMilliseconds)) {
        looked = Clock::now();
        EndImpatiently();
      }
    }
  }

  // Whether the pair goes on.
  bool Pass(uint64_t key, Pair* pair, int side, uint32_t events, std::vector<char>* buffer) {
    End& end = pair->ends[side];
    End& other = pair->ends[1 - side];
    if (!end.rest.empty() && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
      const ssize_t sent = Send(end, end.rest.data(), end.rest.size());
      if (sent < 0) return false;
      end.rest.erase(end.rest.begin(), end.rest.begin() + sent);
      if (sent) end.waited = Clock::now();
      if (!end.rest.empty()) return true;
      std::vector<char>().swap(end.rest);
      Watch(key, pair);
    }
    if (!other.rest.empty() || !(events & (EPOLLIN | EPOLLERR | EPOLLHUP))) return true;
    const ssize_t received = recv(end.descriptor, buffer->data(), buffer->size(), 0);
    if (received < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (received == 0) return false;
    const ssize_t sent = Send(other, buffer->data(), received);
    if (sent < 0) return false;
    if (sent < received) {
      other.rest.assign(buffer->data() + sent, buffer->data() + received);
      other.waited = Clock::now();
      Watch(key, pair);
    }
    return true;
  }

  // The number of bytes sent, and -1 if the end is lost.
  static ssize_t Send(const End& end, const char* data, size_t size) {
    const ssize_t sent = send(end.descriptor, data, size, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
  }

  // Asks for the events that matter now: nothing is received while the other end has not taken what came before. An end
  // without such events is not watched, because epoll tells of one that is lost again and again.
  void Watch(uint64_t key, Pair* pair) {
    for (int side : {0, 1}) {
      End& end = pair->ends[side];
      epoll_event event{0, {}};
      if (pair->ends[1 - side].rest.empty()) event.events |= EPOLLIN;
      if (!end.rest.empty()) event.events |= EPOLLOUT;
      event.data.u64 = key << 1 | side;
      const bool wanted = event.events != 0;
      if (wanted || end.watched) {
        const int change = !wanted ? EPOLL_CTL_DEL : end.watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
        epoll_ctl(poll_, change, end.descriptor, &event);
      }
      end.watched = wanted;
    }
  }

  using Pairs = std::unordered_map<uint64_t, std::unique_ptr<Pair>>;

  Pairs::iterator Finish(Pairs::iterator found) {
    const Pair& pair = *found->second;
    for (const End& end : pair.ends) epoll_ctl(poll_, EPOLL_CTL_DEL, end.descriptor, nullptr);
    while (write(pair.ended, &pair.number, sizeof pair.number) < 0 && errno == EINTR) {
    }
    return pairs_.erase(found);
  }

  void EndImpatiently() {
    const Clock::time_point now = Clock::now();
    for (auto found = pairs_.begin(); found != pairs_.end();) {
      bool late = false;
      for (const End& end : found->second->ends) {
        late = late || (!end.rest.empty() && now - end.waited > found->second->patience);
      }
      found = late ? Finish(found) : std::next(found);
    }
  }

  std::mutex mutex_;
  int poll_ = -1;
  uint64_t next_ = 0;
  Pairs pairs_;
};

}  // namespace

__attribute__((visibility("default"))) int32_t heterocc_cpu_pass_between(int32_t first, int32_t second, double seconds,
                                                                         int32_t ended, int64_t number) {
  // Never destroyed: its thread has no end.
  static Passing* const passing = new Passing;
  auto pair = std::make_unique<Pair>();
  pair->ends[0].descriptor = first;
  pair->ends[1].descriptor = second;
  pair->patience = std::chrono::duration<double>(seconds);
  pair->ended = ended;
  pair->number = number;
  return passing->Add(std::move(pair));
}
