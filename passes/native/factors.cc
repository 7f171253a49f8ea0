#include "factors.h"

#include <algorithm>

namespace heterocc {

Factors::Factors(const Problem& problem) : problem_(problem), first_place_(problem.nodes + 1, 0) {
  int64_t most = 0;
  for (int64_t f = 0; f < problem.factors; ++f) {
    most = std::max(most, Readers(f));
    for (int64_t slot = 0; slot <= Readers(f); ++slot) ++first_place_[Node(f, slot) + 1];
  }
  for (int64_t v = 0; v < problem.nodes; ++v) first_place_[v + 1] += first_place_[v];
  places_.resize(first_place_[problem.nodes]);
  std::vector<int64_t> next(first_place_.begin(), first_place_.end() - 1);
  for (int64_t f = 0; f < problem.factors; ++f) {
    for (int64_t slot = 0; slot <= Readers(f); ++slot) places_[next[Node(f, slot)]++] = {f, slot};
  }
  beliefs_.resize((most + 1) * problem.devices);
  sent_.resize(problem.devices);
}

double Factors::Belief(int64_t factor, int64_t slot, int64_t device, const double* messages, const int64_t* labels,
                       int64_t fixed) const {
  const int64_t node = Node(factor, slot);
  if (node < fixed) return labels[node] == device ? 0.0 : kInfinity;
  return Allowed(node, device) ? -messages[Messages(factor, slot) + device] : kInfinity;
}

void Factors::Least(int64_t factor, int64_t slot, const double* messages, const int64_t* labels, int64_t fixed,
                    double* least) {
  const int64_t devices = problem_.devices, readers = Readers(factor), entry = problem_.first[factor];
  const double share = problem_.share[factor], nbytes = problem_.nbytes[factor];
  std::fill(least, least + devices, kInfinity);
  for (int64_t s = 0; s <= readers; ++s) {
    for (int64_t d = 0; d < devices; ++d) {
      beliefs_[s * devices + d] =
          s == slot ? (Allowed(Node(factor, s), d) ? 0.0 : kInfinity) : Belief(factor, s, d, messages, labels, fixed);
    }
  }
  for (int64_t source = 0; source < devices; ++source) {
    const double begin = beliefs_[source];
    if (begin == kInfinity) continue;
    for (int64_t d = 0; d < devices; ++d) {
      sent_[d] =
          d == source
              ? 0.0
              : share * (problem_.latency[source * devices + d] + nbytes * problem_.per_byte[source * devices + d]);
    }
    if (readers == 1) {
      const double launch = problem_.launch[entry];
      for (int64_t d = 0; d < devices; ++d) {
        const double cost =
            begin + beliefs_[devices + d] + (d == source ? 0.0 : sent_[d] + launch * problem_.overhead[d]);
        double& found = least[slot == 0 ? source : d];
        found = std::min(found, cost);
      }
      continue;
    }
    // Each set of devices to which the value is sent.
    for (int64_t set = 0; set < int64_t{1} << devices; ++set) {
      if (set >> source & 1) continue;
      double cost = begin;
      for (int64_t d = 0; d < devices; ++d) {
        if (set >> d & 1) cost += sent_[d];
      }
      for (int64_t s = 1; s <= readers && cost < kInfinity; ++s) {
        if (s == slot) continue;
        const double launch = problem_.launch[entry + s - 1];
        double best = beliefs_[s * devices + source];
        for (int64_t d = 0; d < devices; ++d) {
          if (set >> d & 1) best = std::min(best, beliefs_[s * devices + d] + launch * problem_.overhead[d]);
        }
        cost += best;
      }
      if (cost == kInfinity) continue;
      if (slot == 0) {
        least[source] = std::min(least[source], cost);
        continue;
      }
      const double launch = problem_.launch[entry + slot - 1];
      for (int64_t d = 0; d < devices; ++d) {
        if (d != source && !(set >> d & 1)) continue;
        const double found = cost + (d == source ? 0.0 : launch * problem_.overhead[d]);
        least[d] = std::min(least[d], found);
      }
    }
  }
  for (int64_t d = 0; d < devices; ++d) {
    if (!Allowed(Node(factor, slot), d)) least[d] = kInfinity;
  }
}

}  // namespace heterocc
