// Lower bounds of a placement's cost by messages between nodes and values: V. Kolmogorov, "A new look at reweighted
// message passing" (2015). A sweep never lowers the bound; it is exact for trees.
#include <algorithm>
#include <cmath>
#include <vector>

#include "factors.h"

namespace {

using heterocc::Factors;
using heterocc::kInfinity;

class Relaxation {
 public:
  Relaxation(const heterocc::Problem& problem, double* messages)
      : factors_(problem), problem_(problem), messages_(messages), belief_(problem.devices), least_(problem.devices) {}

  void Sweep(bool forward, int64_t* labels) {
    const int64_t count = problem_.nodes;
    for (int64_t i = 0; i < count; ++i) Visit(forward ? i : count - 1 - i, forward, labels);
  }

  double Bound() {
    double bound = 0.0;
    for (int64_t node = 0; node < problem_.nodes; ++node) {
      Beliefs(node);
      bound += *std::min_element(belief_.begin(), belief_.end());
    }
    for (int64_t f = 0; f < problem_.factors; ++f) {
      factors_.Least(f, 0, messages_, nullptr, 0, least_.data());
      double best = kInfinity;
      for (int64_t d = 0; d < problem_.devices; ++d)
        best = std::min(best, least_[d] - messages_[f * problem_.devices + d]);
      bound += best;
    }
    return bound;
  }

 private:
  // The cost of a node with all its messages, for each device.
  void Beliefs(int64_t node) {
    for (int64_t d = 0; d < problem_.devices; ++d) {
      belief_[d] = factors_.Allowed(node, d) ? factors_.Own(node, d) : kInfinity;
    }
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
      const double* message = messages_ + factors_.Messages(place->factor, place->slot);
      for (int64_t d = 0; d < problem_.devices; ++d) belief_[d] += message[d];
    }
  }

  bool IsFirst(const Factors::Place& place) const { return place.slot == 0; }
  bool IsLast(const Factors::Place& place) const { return place.slot == factors_.Readers(place.factor); }

  // Takes what all factors of a node know about it, and gives those with nodes that follow in the sweep a share.
  void Visit(int64_t node, bool forward, int64_t* labels) {
    const int64_t devices = problem_.devices;
    int64_t ahead = 0, behind = 0;
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
      const bool first = IsFirst(*place), last = IsLast(*place);
      ahead += forward ? !last : !first;
      behind += forward ? !first : !last;
      double* message = messages_ + factors_.Messages(place->factor, place->slot);
      factors_.Least(place->factor, place->slot, messages_, nullptr, 0, least_.data());
      for (int64_t d = 0; d < devices; ++d) message[d] = std::isinf(least_[d]) ? 0.0 : least_[d];
    }
    if (labels != nullptr) Decide(node, labels);
    Beliefs(node);
    const double share = 1.0 / static_cast<double>(std::max<int64_t>(std::max(ahead, behind), 1));
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
      if (forward ? IsLast(*place) : IsFirst(*place)) continue;
      double* message = messages_ + factors_.Messages(place->factor, place->slot);
      for (int64_t d = 0; d < devices; ++d) {
        if (!std::isinf(belief_[d])) message[d] -= share * belief_[d];
      }
    }
  }

  // The best device of a node after all earlier nodes have theirs.
  void Decide(int64_t node, int64_t* labels) {
    for (int64_t d = 0; d < problem_.devices; ++d) {
      belief_[d] = factors_.Allowed(node, d) ? factors_.Own(node, d) : kInfinity;
    }
    for (auto place = factors_.begin(node); place != factors_.end(node); ++place) {
      factors_.Least(place->factor, place->slot, messages_, labels, node, least_.data());
      for (int64_t d = 0; d < problem_.devices; ++d) belief_[d] += least_[d];
    }
    labels[node] = std::min_element(belief_.begin(), belief_.end()) - belief_.begin();
  }

  Factors factors_;
  const heterocc::Problem& problem_;
  double* messages_;
  std::vector<double> belief_, least_;
};

}  // namespace

double heterocc_relax(const heterocc::Problem* problem, int64_t sweeps, double* messages, int64_t* labels) {
  Relaxation relaxation(*problem, messages);
  for (int64_t i = 0; i < sweeps; ++i) {
    relaxation.Sweep(true, i + 1 == sweeps ? labels : nullptr);
    relaxation.Sweep(false, nullptr);
  }
  return relaxation.Bound();
}
