// A turn executes all nodes of a device that are ready or become ready, so a sequence of devices determines the turns.
// With two devices turns alternate, and only the first is a choice. With more, the shortest sequence is NP-hard: A*
// within a limit on work after contraction of nodes that always run together, then a beam search.
#include "turns.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <unordered_map>

namespace heterocc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTie = 1e-10;  // the share of the sum in a largest load: it decides between equal ones
constexpr int64_t kWidestBeam = 48;
constexpr int64_t kBeamWork = 30;  // numbers that the states of a beam search copy, for each step of the exact search

// Costs of numbers of turns by device: their sum, or the largest of the devices' loads with their turns.
class Price {
 public:
  Price(int64_t devices, const double* weights, const double* loads)
      : devices_(devices), weights_(weights), loads_(loads) {}

  template <typename Counts>
  double operator()(const Counts& counts) const {
    double sum = 0.0, most = 0.0;
    for (int64_t d = 0; d < devices_; ++d) {
      const double own = weights_[d] * static_cast<double>(counts[d]);
      sum += own;
      if (loads_ != nullptr) most = std::max(most, loads_[d] + own);
    }
    return loads_ == nullptr ? sum : most + kTie * sum;
  }
  // Return whether one of two states can be better although its cost so far is higher.
  bool by_device() const { return loads_ != nullptr; }

 private:
  int64_t devices_;
  const double* weights_;
  const double* loads_;
};

// The graph after contraction of nodes that run in one turn in every sequence.
struct Blocks {
  std::vector<int64_t> block_of, colour, waits;
  std::vector<std::vector<int64_t>> followers;
  std::vector<std::vector<int64_t>> tails;  // the most turns of each device on a path that begins with the block

  Blocks(int64_t nodes, int64_t devices, const int64_t* first_source, const int64_t* sources, const int64_t* labels) {
    std::map<std::vector<int64_t>, int64_t> by_key;
    std::vector<std::vector<int64_t>> before_block;
    std::vector<int64_t> before;
    block_of.reserve(nodes);
    for (int64_t node = 0; node < nodes; ++node) {
      before.clear();
      for (int64_t e = first_source[node]; e < first_source[node + 1]; ++e) before.push_back(block_of[sources[e]]);
      std::sort(before.begin(), before.end());
      before.erase(std::unique(before.begin(), before.end()), before.end());
      if (before.size() > 1) DropImplied(before, before_block);
      if (before.size() == 1 && colour[before[0]] == labels[node]) {
        block_of.push_back(before[0]);
        continue;
      }
      before.push_back(-1 - labels[node]);
      const auto [entry, is_new] = by_key.emplace(before, static_cast<int64_t>(colour.size()));
      before.pop_back();
      if (is_new) {
        colour.push_back(labels[node]);
        before_block.push_back(before);
      }
      block_of.push_back(entry->second);
    }
    followers.resize(colour.size());
    for (size_t block = 0; block < colour.size(); ++block) {
      for (const int64_t other : before_block[block]) followers[other].push_back(static_cast<int64_t>(block));
      waits.push_back(static_cast<int64_t>(before_block[block].size()));
    }
    tails.assign(colour.size(), std::vector<int64_t>(devices, 0));
    for (int64_t block = static_cast<int64_t>(colour.size()) - 1; block >= 0; --block) {
      const int64_t own = colour[block];
      tails[block][own] = 1;
      for (const int64_t follower : followers[block]) {
        for (int64_t d = 0; d < devices; ++d) {
          const int64_t more = d == own && colour[follower] != own;
          tails[block][d] = std::max(tails[block][d], tails[follower][d] + more);
        }
      }
    }
  }

 private:
  // Leaves out blocks that are direct predecessors of another one.
  static void DropImplied(std::vector<int64_t>& before, const std::vector<std::vector<int64_t>>& before_block) {
    std::vector<int64_t> kept;
    for (const int64_t block : before) {
      const bool implied = std::any_of(before.begin(), before.end(), [&](int64_t other) {
        return other > block && std::binary_search(before_block[other].begin(), before_block[other].end(), block);
      });
      if (!implied) kept.push_back(block);
    }
    before.swap(kept);
  }
};

struct State {
  std::vector<uint64_t> done;
  std::vector<int64_t> waits;
  std::vector<std::vector<int64_t>> ready;
  std::vector<int64_t> counts;
  int64_t executed = 0, last = -1;
  double bound = 0.0;
  std::shared_ptr<const State> parent;
};
using StatePointer = std::shared_ptr<State>;

class Search {
 public:
  Search(const Blocks& blocks, int64_t devices, const Price& price)
      : blocks_(blocks), devices_(devices), price_(price), most_(devices) {}

  StatePointer Start() const {
    auto state = std::make_shared<State>();
    state->done.assign((blocks_.colour.size() + 63) / 64, 0);
    state->waits = blocks_.waits;
    state->ready.resize(devices_);
    state->counts.assign(devices_, 0);
    for (size_t block = 0; block < blocks_.colour.size(); ++block) {
      if (blocks_.waits[block] == 0) state->ready[blocks_.colour[block]].push_back(static_cast<int64_t>(block));
    }
    return state;
  }

  bool IsDone(const State& state) const { return state.executed == static_cast<int64_t>(blocks_.colour.size()); }

  // The state after a turn of a device; it keeps its parent for the sequence, unless `forget`.
  StatePointer Turn(const std::shared_ptr<const State>& parent, int64_t colour) {
    auto state = std::make_shared<State>(*parent);
    state->parent = parent;
    state->last = colour;
    ++state->counts[colour];
    std::vector<int64_t> work;
    work.swap(state->ready[colour]);
    while (!work.empty()) {
      const int64_t block = work.back();
      work.pop_back();
      state->done[block >> 6] |= uint64_t{1} << (block & 63);
      ++state->executed;
      for (const int64_t follower : blocks_.followers[block]) {
        ++work_;
        if (--state->waits[follower] > 0) continue;
        auto& list = blocks_.colour[follower] == colour ? work : state->ready[blocks_.colour[follower]];
        list.push_back(follower);
      }
      ++work_;
    }
    state->bound = Bound(*state);
    return state;
  }

  // No sequence that begins like this costs less: two blocks of a device with another one between them share no turn.
  double Bound(const State& state) {
    std::fill(most_.begin(), most_.end(), 0);
    for (const auto& list : state.ready) {
      for (const int64_t block : list) {
        for (int64_t d = 0; d < devices_; ++d) most_[d] = std::max(most_[d], blocks_.tails[block][d]);
        ++work_;
      }
    }
    for (int64_t d = 0; d < devices_; ++d) most_[d] += state.counts[d];
    return price_(most_);
  }

  // The cheapest sequence, or null if it is not found within the limit.
  std::shared_ptr<const State> Exact(int64_t limit, double* proven) {
    struct Entry {
      double bound, cost;
      int64_t number;
      std::shared_ptr<const State> state;
      bool operator<(const Entry& other) const {
        if (bound != other.bound) return bound > other.bound;
        if (cost != other.cost) return cost < other.cost;
        return number > other.number;
      }
    };
    std::priority_queue<Entry> open;
    std::map<std::vector<uint64_t>, std::vector<std::vector<int64_t>>> reached;
    auto start = Start();
    start->bound = Bound(*start);
    *proven = start->bound;
    int64_t number = 0;
    work_ = 0;
    open.push({start->bound, 0.0, number, start});
    while (!open.empty()) {
      const auto state = open.top().state;
      *proven = std::max(*proven, open.top().bound);
      open.pop();
      if (IsDone(*state)) return state;
      for (int64_t colour = 0; colour < devices_; ++colour) {
        if (state->ready[colour].empty()) continue;
        auto next = Turn(state, colour);
        work_ += static_cast<int64_t>(next->waits.size()) / 16;
        auto& known = reached[next->done];
        const double cost = price_(next->counts);
        const bool worse = std::any_of(known.begin(), known.end(), [&](const std::vector<int64_t>& counts) {
          if (!price_.by_device()) return price_(counts) <= cost;
          for (int64_t d = 0; d < devices_; ++d) {
            if (counts[d] > next->counts[d]) return false;
          }
          return true;
        });
        if (worse) continue;
        known.push_back(next->counts);
        open.push({next->bound, cost, ++number, std::move(next)});
      }
      if (work_ > limit) return nullptr;
    }
    return nullptr;
  }

  // How many states a beam search can keep after each turn.
  int64_t Width(int64_t work) {
    Bound(*Start());
    int64_t turns = 1;
    for (int64_t d = 0; d < devices_; ++d) turns += most_[d];
    const auto copied = static_cast<int64_t>(blocks_.colour.size()) * turns * devices_;
    return std::min<int64_t>(kBeamWork * work / std::max<int64_t>(copied, 1), kWidestBeam);
  }

  std::shared_ptr<const State> Beam(int64_t width) {
    std::vector<std::shared_ptr<const State>> states{Start()};
    while (true) {
      std::vector<StatePointer> found;
      std::set<std::vector<uint64_t>> seen;
      for (const auto& state : states) {
        for (int64_t colour = 0; colour < devices_; ++colour) {
          if (state->ready[colour].empty()) continue;
          auto next = Turn(state, colour);
          if (seen.insert(next->done).second) found.push_back(std::move(next));
        }
      }
      std::stable_sort(found.begin(), found.end(), [](const StatePointer& a, const StatePointer& b) {
        return a->bound != b->bound ? a->bound < b->bound : a->executed > b->executed;
      });
      if (IsDone(*found[0])) return found[0];
      if (static_cast<int64_t>(found.size()) > width) found.resize(width);
      for (auto& state : states) Forget(state);
      states.assign(found.begin(), found.end());
    }
  }

  // The sequence in which each turn is the one that seems best, found in place.
  std::vector<int64_t> Greedy() {
    State state = *Start();
    std::vector<int64_t> sequence, executed;
    while (!IsDone(state)) {
      int64_t best = -1, most = 0, able = 0;
      double least = kInfinity;
      for (int64_t colour = 0; colour < devices_; ++colour) {
        if (!state.ready[colour].empty()) {
          ++able;
          best = colour;
        }
      }
      for (int64_t colour = 0; able > 1 && colour < devices_; ++colour) {
        if (state.ready[colour].empty()) continue;
        const auto begun = state.ready[colour];
        std::vector<size_t> sizes;
        for (const auto& list : state.ready) sizes.push_back(list.size());
        Execute(state, colour, executed);
        const double bound = Bound(state);
        if (bound < least || (bound == least && static_cast<int64_t>(executed.size()) > most)) {
          best = colour;
          least = bound;
          most = static_cast<int64_t>(executed.size());
        }
        for (const int64_t block : executed) {
          for (const int64_t follower : blocks_.followers[block]) ++state.waits[follower];
        }
        for (int64_t d = 0; d < devices_; ++d) state.ready[d].resize(std::min(sizes[d], state.ready[d].size()));
        state.ready[colour] = begun;
        state.executed -= static_cast<int64_t>(executed.size());
        --state.counts[colour];
      }
      Execute(state, best, executed);
      sequence.push_back(best);
    }
    return sequence;
  }

 private:
  // Runs a turn of a device in place.
  void Execute(State& state, int64_t colour, std::vector<int64_t>& executed) {
    ++state.counts[colour];
    executed.clear();
    executed.swap(state.ready[colour]);
    for (size_t place = 0; place < executed.size(); ++place) {
      for (const int64_t follower : blocks_.followers[executed[place]]) {
        if (--state.waits[follower] > 0) continue;
        (blocks_.colour[follower] == colour ? executed : state.ready[blocks_.colour[follower]]).push_back(follower);
      }
    }
    state.executed += static_cast<int64_t>(executed.size());
  }

  // Frees what only the next turns need: a beam search of a large graph would keep a copy for each turn.
  static void Forget(const std::shared_ptr<const State>& state) {
    auto& used = const_cast<State&>(*state);
    used.done = {};
    used.waits = {};
    used.ready = {};
  }

  const Blocks& blocks_;
  int64_t devices_;
  const Price& price_;
  std::vector<int64_t> most_;
  int64_t work_ = 0;
};

// The turn of each block in a sequence of devices.
std::vector<int64_t> Play(const Blocks& blocks, int64_t devices, const std::vector<int64_t>& sequence) {
  std::vector<int64_t> turn_of(blocks.colour.size(), 0), waits = blocks.waits, work;
  std::vector<std::vector<int64_t>> ready(devices);
  for (size_t block = 0; block < blocks.colour.size(); ++block) {
    if (waits[block] == 0) ready[blocks.colour[block]].push_back(static_cast<int64_t>(block));
  }
  for (size_t turn = 0; turn < sequence.size(); ++turn) {
    work.clear();
    work.swap(ready[sequence[turn]]);
    while (!work.empty()) {
      const int64_t block = work.back();
      work.pop_back();
      turn_of[block] = static_cast<int64_t>(turn);
      for (const int64_t follower : blocks.followers[block]) {
        if (--waits[follower] > 0) continue;
        (blocks.colour[follower] == sequence[turn] ? work : ready[blocks.colour[follower]]).push_back(follower);
      }
    }
  }
  return turn_of;
}

// Two devices take turns; the first one is that with which they cost less.
Turns Alternating(int64_t nodes, const int64_t* first_source, const int64_t* sources, const int64_t* labels,
                  int64_t first, int64_t other, int64_t devices, const Price& price) {
  Turns best{{}, kInfinity, kInfinity};
  for (const int64_t begins : {first, other}) {
    std::vector<int64_t> turn_of(nodes);
    std::vector<int64_t> counts(devices, 0);
    int64_t last = 0, least = 1;
    for (int64_t node = 0; node < nodes; ++node) {
      int64_t turn = labels[node] != begins;
      for (int64_t e = first_source[node]; e < first_source[node + 1]; ++e) {
        turn = std::max(turn, turn_of[sources[e]] + (labels[sources[e]] != labels[node]));
      }
      turn_of[node] = turn;
      last = std::max(last, turn);
      least = std::min(least, turn);
    }
    if (least > 0) continue;  // as if the other one began, a turn later
    counts[begins] = last / 2 + 1;
    counts[begins == first ? other : first] = (last + 1) / 2;
    const double cost = price(counts);
    if (cost < best.cost) best = {std::move(turn_of), cost, cost};
  }
  return best;
}

}  // namespace

Turns CheapestTurns(int64_t nodes, int64_t devices, const int64_t* first_source, const int64_t* sources,
                    const int64_t* labels, const double* weights, const double* loads, int64_t work) {
  const Price price(devices, weights, loads);
  std::vector<int64_t> counts(devices, 0);
  for (int64_t node = 0; node < nodes; ++node) counts[labels[node]] = 1;
  const int64_t used = std::count(counts.begin(), counts.end(), 1);
  if (used <= 1) {
    const double cost = price(counts);
    return {std::vector<int64_t>(nodes, 0), cost, cost};
  }
  if (used == 2) {
    const int64_t first = std::find(counts.begin(), counts.end(), 1) - counts.begin();
    const int64_t other = std::find(counts.begin() + first + 1, counts.end(), 1) - counts.begin();
    return Alternating(nodes, first_source, sources, labels, first, other, devices, price);
  }
  const Blocks blocks(nodes, devices, first_source, sources, labels);
  Search search(blocks, devices, price);
  double proven = 0.0;
  auto state = search.Exact(work, &proven);
  std::vector<int64_t> sequence;
  if (state == nullptr) {
    const int64_t width = search.Width(work);
    if (width > 1) {
      state = search.Beam(width);
    } else {
      sequence = search.Greedy();
    }
  }
  for (const State* at = state.get(); at != nullptr && at->last >= 0; at = at->parent.get())
    sequence.push_back(at->last);
  if (state != nullptr) std::reverse(sequence.begin(), sequence.end());
  // The chain of parents is freed one by one: recursion would be as deep as the sequence is long.
  std::shared_ptr<const State> rest = std::move(state);
  while (rest != nullptr && rest.use_count() == 1) {
    std::shared_ptr<const State> parent = std::move(const_cast<State&>(*rest).parent);
    rest = std::move(parent);
  }
  std::fill(counts.begin(), counts.end(), 0);
  for (const int64_t colour : sequence) ++counts[colour];
  const double cost = price(counts);
  const auto turn_of = Play(blocks, devices, sequence);
  Turns found{std::vector<int64_t>(nodes), cost, std::min(cost, proven)};
  for (int64_t node = 0; node < nodes; ++node) found.of[node] = turn_of[blocks.block_of[node]];
  return found;
}

}  // namespace heterocc

double heterocc_turns(int64_t nodes, int64_t devices, const int64_t* first_source, const int64_t* sources,
                      const int64_t* labels, const double* weights, const double* loads, int64_t work, int64_t* turns,
                      double* proven) {
  const auto found = heterocc::CheapestTurns(nodes, devices, first_source, sources, labels, weights, loads, work);
  std::copy(found.of.begin(), found.of.end(), turns);
  if (proven != nullptr) *proven = found.proven;
  return found.cost;
}
