// Values as factors of a placement problem, and their least costs with messages.
#ifndef HETEROCC_PASSES_FACTORS_H_
#define HETEROCC_PASSES_FACTORS_H_

#include <limits>
#include <vector>

#include "solver.h"

namespace heterocc {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Reads the costs of a problem. Slot 0 of a factor is its producer, slot s its reader s - 1. Not for several threads.
class Factors {
 public:
  explicit Factors(const Problem& problem);

  const Problem& problem() const { return problem_; }
  int64_t Readers(int64_t factor) const { return problem_.first[factor + 1] - problem_.first[factor]; }
  int64_t Node(int64_t factor, int64_t slot) const {
    return slot == 0 ? problem_.producer[factor] : problem_.readers[problem_.first[factor] + slot - 1];
  }
  // Where the messages of a slot begin.
  int64_t Messages(int64_t factor, int64_t slot) const {
    return (slot == 0 ? factor : problem_.factors + problem_.first[factor] + slot - 1) * problem_.devices;
  }
  bool Allowed(int64_t node, int64_t device) const {
    return problem_.seconds[node * problem_.devices + device] < kInfinity;
  }
  // The cost of a node by itself.
  double Own(int64_t node, int64_t device) const {
    return problem_.seconds[node * problem_.devices + device] + problem_.start[node] * problem_.overhead[device];
  }

  struct Place {
    int64_t factor, slot;
  };
  // The slots in which a node is.
  const Place* begin(int64_t node) const { return places_.data() + first_place_[node]; }
  const Place* end(int64_t node) const { return places_.data() + first_place_[node + 1]; }

  // For each device of the node in `slot` the least cost of a factor less its messages; no message of `slot` itself.
  //
  // A node before `fixed` has the device `labels` says, and none of its messages count.
  void Least(int64_t factor, int64_t slot, const double* messages, const int64_t* labels, int64_t fixed, double* least);

 private:
  // The message of a slot's node for a device, negative, or infinity if the device is not possible.
  double Belief(int64_t factor, int64_t slot, int64_t device, const double* messages, const int64_t* labels,
                int64_t fixed) const;

  const Problem& problem_;
  std::vector<int64_t> first_place_;
  std::vector<Place> places_;
  std::vector<double> beliefs_, sent_;
};

}  // namespace heterocc

#endif  // HETEROCC_PASSES_FACTORS_H_
