// Minimum cuts by pushing preflows, the vertex with the highest label first: B. V. Cherkassky and A. V. Goldberg,
// "On implementing the push-relabel method for the maximum flow problem" (1997), with global relabelling and gaps.
#include <algorithm>
#include <limits>
#include <vector>

#include "solver.h"

namespace {

class Network {
 public:
  Network(int64_t vertices, int64_t arcs, const int64_t* tails, const int64_t* heads, const int64_t* capacities)
      : count_(vertices), first_(vertices + 1, 0), excess_(vertices, 0), label_(vertices, 0), current_(vertices, 0) {
    for (int64_t i = 0; i < arcs; ++i) {
      ++first_[tails[i] + 1];
      ++first_[heads[i] + 1];
    }
    for (int64_t v = 0; v < vertices; ++v) first_[v + 1] += first_[v];
    head_.resize(2 * arcs);
    residual_.resize(2 * arcs);
    reverse_.resize(2 * arcs);
    std::vector<int64_t> next(first_.begin(), first_.end() - 1);
    for (int64_t i = 0; i < arcs; ++i) {
      const int64_t forth = next[tails[i]]++, back = next[heads[i]]++;
      head_[forth] = heads[i];
      head_[back] = tails[i];
      residual_[forth] = capacities[i];
      residual_[back] = 0;
      reverse_[forth] = back;
      reverse_[back] = forth;
    }
    active_.resize(vertices + 1);
    of_label_.assign(vertices + 1, 0);
  }

  // Push as much as possible to the sink; what cannot reach it stays where it is.
  void Solve() {
    for (int64_t e = first_[0]; e < first_[1]; ++e) {
      if (head_[e] == 0) continue;
      excess_[head_[e]] += residual_[e];
      residual_[reverse_[e]] += residual_[e];
      residual_[e] = 0;
    }
    Relabel();
    while (highest_ >= 0) {
      if (active_[highest_].empty()) {
        --highest_;
        continue;
      }
      const int64_t vertex = active_[highest_].back();
      active_[highest_].pop_back();
      if (label_[vertex] == highest_ && excess_[vertex] > 0) Discharge(vertex);
      if (work_ > 6 * count_ + static_cast<int64_t>(head_.size())) Relabel();
    }
  }

  // Marks the vertices from which the sink can be reached.
  void Sides(uint8_t* on_sink) {
    Relabel();
    for (int64_t v = 0; v < count_; ++v) on_sink[v] = v == 1 || (v != 0 && label_[v] < count_);
  }

 private:
  // Labels become the distances to the sink.
  void Relabel() {
    work_ = 0;
    std::fill(label_.begin(), label_.end(), count_);
    std::fill(of_label_.begin(), of_label_.end(), 0);
    for (auto& list : active_) list.clear();
    highest_ = -1;
    queue_.assign(1, 1);
    label_[1] = 0;
    for (size_t place = 0; place < queue_.size(); ++place) {
      const int64_t vertex = queue_[place];
      current_[vertex] = first_[vertex];
      ++of_label_[label_[vertex]];
      for (int64_t e = first_[vertex]; e < first_[vertex + 1]; ++e) {
        const int64_t other = head_[e];
        if (other == 0 || label_[other] < count_ || residual_[reverse_[e]] <= 0) continue;
        label_[other] = label_[vertex] + 1;
        queue_.push_back(other);
        Activate(other);
      }
    }
    label_[1] = 0;
  }

  void Activate(int64_t vertex) {
    if (vertex < 2 || excess_[vertex] <= 0 || label_[vertex] >= count_) return;
    active_[label_[vertex]].push_back(vertex);
    highest_ = std::max(highest_, label_[vertex]);
  }

  void Discharge(int64_t vertex) {
    while (excess_[vertex] > 0) {
      for (; current_[vertex] < first_[vertex + 1]; ++current_[vertex]) {
        const int64_t e = current_[vertex], other = head_[e];
        ++work_;
        if (residual_[e] <= 0 || label_[vertex] != label_[other] + 1) continue;
        const int64_t sent = std::min(excess_[vertex], residual_[e]);
        const bool was_active = excess_[other] > 0;
        residual_[e] -= sent;
        residual_[reverse_[e]] += sent;
        excess_[vertex] -= sent;
        excess_[other] += sent;
        if (!was_active) Activate(other);
        if (excess_[vertex] == 0) return;
      }
      int64_t label = count_;
      for (int64_t e = first_[vertex]; e < first_[vertex + 1]; ++e) {
        if (residual_[e] > 0) label = std::min(label, label_[head_[e]] + 1);
      }
      work_ += first_[vertex + 1] - first_[vertex] + 12;
      const int64_t old = label_[vertex];
      if (--of_label_[old] == 0) label = count_;  // a gap: nothing behind it reaches the sink
      label_[vertex] = label;
      current_[vertex] = first_[vertex];
      if (label >= count_) return;
      ++of_label_[label];
    }
  }

  int64_t count_;
  std::vector<int64_t> first_, head_, residual_, reverse_;
  std::vector<int64_t> excess_, label_, current_, of_label_, queue_;
  std::vector<std::vector<int64_t>> active_;
  int64_t highest_ = -1, work_ = 0;
};

}  // namespace

void heterocc_min_cut(int64_t vertices, int64_t arcs, const int64_t* tails, const int64_t* heads,
                      const int64_t* capacities, uint8_t* on_sink) {
  Network network(vertices, arcs, tails, heads, capacities);
  network.Solve();
  network.Sides(on_sink);
}
