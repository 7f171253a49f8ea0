// The best placement of a small graph by branch and bound, node by node in the order of the graph.
#include <algorithm>
#include <cmath>
#include <vector>

#include "factors.h"
#include "turns.h"

namespace {

using heterocc::Factors;
using heterocc::kInfinity;
using heterocc::Memory;
using heterocc::Problem;

constexpr int64_t kTurnsWork = 400'000;  // of the exact search for the turns of one placement

// A lower bound by messages, kept up to date while nodes get their devices one after the other.
class Guide {
 public:
  Guide(const Problem& problem, const double* messages)
      : factors_(problem), problem_(problem), messages_(messages), value_(problem.factors), least_(problem.devices) {
    for (int64_t i = 0; i < problem.nodes; ++i) counts_groups_ |= problem.start[i] > 0;
    for (int64_t f = 0; f < problem.factors; ++f) {
      factors_.Least(f, 0, messages, nullptr, 0, least_.data());
      value_[f] = kInfinity;
      for (int64_t d = 0; d < problem.devices; ++d) {
        value_[f] = std::min(value_[f], least_[d] - messages[f * problem.devices + d]);
      }
      bound_ += value_[f];
    }
    for (int64_t node = 0; node < problem.nodes; ++node) bound_ += NodeValue(node);
  }

  double bound() const { return bound_; }
  bool counts_groups() const { return counts_groups_; }
  const double* overhead() const { return problem_.overhead; }

  // What each device adds to the bound if the node after `labels` gets it.
  void Added(int64_t node, const int64_t* labels, double* added) {
    const double before = NodeValue(node);
    for (int64_t d = 0; d < problem_.devices; ++d) {
      added[d] = factors_.Allowed(node, d) ? factors_.Own(node, d) - before : kInfinity;
    }
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
      factors_.Least(place->factor, place->slot, messages_, labels, node, least_.data());
      for (int64_t d = 0; d < problem_.devices; ++d) added[d] += least_[d] - value_[place->factor];
    }
  }

  // Gives the node a device; `kept` gets what Undo needs.
  void Set(int64_t node, const int64_t* labels, double added, std::vector<double>& kept) {
    kept.assign(1, bound_);
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
      kept.push_back(value_[place->factor]);
      factors_.Least(place->factor, place->slot, messages_, labels, node, least_.data());
      value_[place->factor] = least_[labels[node]];
    }
    bound_ += added;
  }

  void Undo(int64_t node, const std::vector<double>& kept) {
    bound_ = kept[0];
    size_t next = 1;
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) value_[place->factor] = kept[next++];
  }

 private:
  double NodeValue(int64_t node) {
    double best = kInfinity;
    for (int64_t d = 0; d < problem_.devices; ++d) {
      if (!factors_.Allowed(node, d)) continue;
      double cost = factors_.Own(node, d);
      for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
        cost += messages_[factors_.Messages(place->factor, place->slot) + d];
      }
      best = std::min(best, cost);
    }
    return best;
  }

  Factors factors_;
  const Problem& problem_;
  const double* messages_;
  std::vector<double> value_, least_;
  double bound_ = 0.0;
  bool counts_groups_ = false;
};

class Enumeration {
 public:
  Enumeration(const Problem& problem, const Problem* relaxations, const double* const* messages, int64_t count,
              const Memory* memory, double best, bool slowest, bool any, int64_t work)
      : factors_(problem),
        problem_(problem),
        memory_(memory),
        best_(best),
        slowest_(slowest),
        any_(any),
        work_(work),
        labels_(problem.nodes, -1),
        loads_(problem.devices, 0.0),
        most_(problem.devices, 0),
        groups_(problem.nodes * problem.devices, 0),
        sent_(problem.factors, 0) {
    guides_.reserve(count);
    for (int64_t i = 0; i < count; ++i) guides_.emplace_back(relaxations[i], messages[i]);
    if (memory_ == nullptr) return;
    held_.assign(problem.devices, 0.0);
    uses_.assign(memory_->count * problem.devices, 0);
    left_.assign(problem.nodes + 1, 0.0);
    for (int64_t i = problem.nodes - 1; i >= 0; --i) left_[i] = left_[i + 1] + memory_->own[i];
  }

  double Run() {
    const double open = Branch(0);
    return std::min(open, best_);
  }

  const std::vector<int64_t>& found() const { return found_; }

 private:
  struct Child {
    double bound;
    int64_t device;
  };

  // Tries all devices for a node; returns the least bound of what was left out because the work is done.
  double Branch(int64_t node) {
    if (node == problem_.nodes) {
      Finish();
      return kInfinity;
    }
    const int64_t devices = problem_.devices;
    std::vector<double> added(devices * std::max<size_t>(guides_.size(), 1), 0.0);
    for (size_t g = 0; g < guides_.size(); ++g) guides_[g].Added(node, labels_.data(), added.data() + g * devices);
    std::vector<Child> children;
    for (int64_t d = 0; d < devices; ++d) {
      if (factors_.Allowed(node, d)) children.push_back({Bound(node, d, added), d});
    }
    std::stable_sort(children.begin(), children.end(),
                     [](const Child& a, const Child& b) { return a.bound < b.bound; });
    work_ -= 1 + (factors_.end(node) - factors_.begin(node));
    double open = kInfinity;
    std::vector<std::vector<double>> kept(guides_.size());
    for (const auto& [bound, device] : children) {
      if (!(bound < best_ * (1 - 1e-12)) || (any_ && !found_.empty())) break;
      if (work_ <= 0) {
        open = std::min(open, bound);
        break;
      }
      if (!Fits(node, device)) continue;
      labels_[node] = device;
      for (size_t g = 0; g < guides_.size(); ++g) {
        guides_[g].Set(node, labels_.data(), added[g * devices + device], kept[g]);
      }
      open = std::min(open, std::max(bound, Descend(node, device)));
      for (size_t g = 0; g < guides_.size(); ++g) guides_[g].Undo(node, kept[g]);
      labels_[node] = -1;
    }
    return open;
  }

  // Continues with the next node, with exact loads, groups and memory of those so far.
  double Descend(int64_t node, int64_t device) {
    const auto loads = loads_;
    const auto most = most_;
    std::vector<int64_t> newly;
    Load(node, device, &newly);
    Groups(node, device, most_.data(), &groups_[node * problem_.devices]);
    Hold(node, device, 1);
    const double open = Branch(node + 1);
    Hold(node, device, -1);
    for (const int64_t f : newly) sent_[f] &= ~(uint64_t{1} << device);
    loads_ = loads;
    most_ = most;
    return open;
  }

  // A lower bound of all placements in which the next node gets a device.
  double Bound(int64_t node, int64_t device, const std::vector<double>& added) {
    const int64_t devices = problem_.devices;
    std::vector<int64_t> most = most_, groups(devices);
    Groups(node, device, most.data(), groups.data());
    double bound = 0.0;
    for (size_t g = 0; g < guides_.size(); ++g) {
      double own = guides_[g].bound() + added[g * devices + device];
      if (!guides_[g].counts_groups()) {
        for (int64_t d = 0; d < devices; ++d) own += guides_[g].overhead()[d] * static_cast<double>(most[d]);
      }
      bound = std::max(bound, own);
    }
    if (!slowest_) return bound;
    auto loads = loads_;
    loads.swap(loads_);
    Load(node, device, nullptr);
    for (int64_t d = 0; d < devices; ++d) {
      bound = std::max(bound, loads_[d] + problem_.overhead[d] * static_cast<double>(most[d]));
    }
    loads.swap(loads_);
    return bound;
  }

  // Adds the time of a node and of the transfers to it; `newly` gets the values that are sent, unless null.
  void Load(int64_t node, int64_t device, std::vector<int64_t>* newly) {
    const int64_t devices = problem_.devices;
    loads_[device] += problem_.seconds[node * devices + device];
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
      if (place->slot == 0) continue;
      const int64_t f = place->factor, source = labels_[problem_.producer[f]];
      if (source == device || (sent_[f] >> device & 1)) continue;
      loads_[device] += problem_.latency[source * devices + device] +
                        problem_.nbytes[f] * problem_.per_byte[source * devices + device];
      if (newly == nullptr) continue;
      newly->push_back(f);
      sent_[f] |= uint64_t{1} << device;
    }
  }

  // The most groups of each device on a path that ends with the node, and in all.
  void Groups(int64_t node, int64_t device, int64_t* most, int64_t* groups) const {
    const int64_t devices = problem_.devices;
    std::fill(groups, groups + devices, 0);
    groups[device] = 1;
    for (int64_t e = problem_.first_source[node]; e < problem_.first_source[node + 1]; ++e) {
      const int64_t source = problem_.sources[e];
      for (int64_t d = 0; d < devices; ++d) {
        const int64_t more = d == device && labels_[source] != device;
        groups[d] = std::max(groups[d], groups_[source * devices + d] + more);
      }
    }
    for (int64_t d = 0; d < devices; ++d) most[d] = std::max(most[d], groups[d]);
  }

  bool Fits(int64_t node, int64_t device) const {
    if (memory_ == nullptr) return true;
    double held = held_[device] + memory_->own[node], free = 0.0;
    for (int64_t e = memory_->first_constant[node]; e < memory_->first_constant[node + 1]; ++e) {
      const int64_t constant = memory_->constants[e];
      if (uses_[constant * problem_.devices + device] == 0) held += memory_->constant_bytes[constant];
    }
    if (held > memory_->capacity[device]) return false;
    for (int64_t d = 0; d < problem_.devices; ++d) free += memory_->capacity[d] - (d == device ? held : held_[d]);
    return left_[node + 1] <= free;
  }

  void Hold(int64_t node, int64_t device, int64_t sign) {
    if (memory_ == nullptr) return;
    held_[device] += static_cast<double>(sign) * memory_->own[node];
    for (int64_t e = memory_->first_constant[node]; e < memory_->first_constant[node + 1]; ++e) {
      int64_t& uses = uses_[memory_->constants[e] * problem_.devices + device];
      const bool changes = sign > 0 ? uses == 0 : uses == 1;
      uses += sign;
      if (changes) held_[device] += static_cast<double>(sign) * memory_->constant_bytes[memory_->constants[e]];
    }
  }

  // All nodes have a device: keeps the placement if it is the best.
  void Finish() {
    double cost = 0.0;
    for (const double load : loads_) cost += load;
    if (std::isinf(cost)) return;
    if (any_) {
      found_ = labels_;
      best_ = 0.0;
      return;
    }
    const auto turns =
        heterocc::CheapestTurns(problem_.nodes, problem_.devices, problem_.first_source, problem_.sources,
                                labels_.data(), problem_.overhead, slowest_ ? loads_.data() : nullptr, kTurnsWork);
    work_ -= problem_.nodes;
    cost = slowest_ ? turns.cost : cost + turns.cost;
    if (!(cost < best_ * (1 - 1e-12))) return;
    best_ = cost;
    found_ = labels_;
  }

  Factors factors_;
  const Problem& problem_;
  const Memory* memory_;
  std::vector<Guide> guides_;
  double best_;
  bool slowest_, any_;
  int64_t work_;
  std::vector<int64_t> labels_, found_;
  std::vector<double> loads_;
  std::vector<int64_t> most_, groups_;
  std::vector<uint64_t> sent_;
  std::vector<double> held_, left_;
  std::vector<int64_t> uses_;
};

}  // namespace

double heterocc_enumerate(const Problem* problem, const Problem* relaxations, const double* const* messages,
                          int64_t count, const Memory* memory, double best, int64_t slowest, int64_t any, int64_t work,
                          int64_t* labels, int64_t* found) {
  Enumeration enumeration(*problem, relaxations, messages, count, memory, best, slowest != 0, any != 0, work);
  const double bound = enumeration.Run();
  *found = !enumeration.found().empty();
  std::copy(enumeration.found().begin(), enumeration.found().end(), labels);
  return bound;
}
