#include "thalweg/eplb/reference.hpp"

#include <algorithm>
#include <numeric>

#include "thalweg/eplb/lanes.hpp"

namespace thalweg::eplb {

namespace {

// The heaviest copy of one step, the heaviest of another expert, and what one more copy of the first would take away.
struct Peak {
  std::size_t expert;
  std::size_t second;
  double gain;
};

class Replication {
 public:
  explicit Replication(const Counts& counts)
      : counts_(counts), copies_(counts.experts, 1.0F), peaks_(counts.steps), gains_(counts.experts, 0.0) {
    for (std::size_t step = 0; step < counts.steps; ++step) peaks_[step] = find_peak(step);
  }

  std::size_t give_copy() {
    std::fill(gains_.begin(), gains_.end(), 0.0);
    for (const Peak& peak : peaks_) gains_[peak.expert] += peak.gain;
    const auto expert = static_cast<std::size_t>(std::max_element(gains_.begin(), gains_.end()) - gains_.begin());
    copies_[expert] += 1.0F;
    for (std::size_t step = 0; step < counts_.steps; ++step) {
      // Every other copy of the step is lighter than these two, and only the copies of this expert changed.
      if (peaks_[step].expert == expert || peaks_[step].second == expert) peaks_[step] = find_peak(step);
    }
    return expert;
  }

 private:
  Peak find_peak(std::size_t step) const {
    const float* count = counts_.step(step);
    float first = -1.0F, second = -1.0F;
    std::size_t first_expert = 0, second_expert = counts_.experts;
    for (std::size_t expert = 0; expert < counts_.experts; ++expert) {
      // The small term decides equal loads: for the last expert.
      const float load = (count[expert] + 1e-4F * static_cast<float>(expert)) / copies_[expert];
      if (load > first) {
        second = first;
        second_expert = first_expert;
        first = load;
        first_expert = expert;
      } else if (load > second) {
        second = load;
        second_expert = expert;
      }
    }
    const float split = count[first_expert] / (copies_[first_expert] + 1.0F);
    return {first_expert, second_expert, static_cast<double>(first) - std::max(second, split)};
  }

  Counts counts_;
  std::vector<float> copies_;
  std::vector<Peak> peaks_;
  std::vector<double> gains_;
};

// Per-copy loads of all experts, [experts, steps], and their sums over the steps.
struct CopyLoads {
  CopyLoads(const Counts& counts, const std::vector<std::int32_t>& experts)
      : steps(counts.steps), loads(counts.experts * counts.steps), sums(counts.experts, 0.0) {
    std::vector<float> copies(counts.experts, 0.0F);
    for (const std::int32_t expert : experts) copies[static_cast<std::size_t>(expert)] += 1.0F;
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t expert = 0; expert < counts.experts; ++expert) {
        const float load = counts.step(step)[expert] / copies[expert];
        loads[expert * steps + step] = load;
        sums[expert] += load;
      }
    }
  }

  const float* of(std::int32_t expert) const { return loads.data() + static_cast<std::size_t>(expert) * steps; }

  std::size_t steps;
  std::vector<float> loads;
  std::vector<double> sums;
};

// The sum over steps of the peak, if the copy joins the rank: in partial sums, which a compiler can keep in vectors
// without changing the order.
double peak_sum(const float* peak, const float* rank, const float* copy, std::size_t steps) {
  double sums[lane_count] = {};
  std::size_t step = 0;
  for (; step + lane_count <= steps; step += lane_count) {
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      sums[lane] += std::max(peak[step + lane], rank[step + lane] + copy[step + lane]);
    }
  }
  for (std::size_t lane = 0; step < steps; ++step, ++lane) {
    sums[lane] += std::max(peak[step], rank[step] + copy[step]);
  }
  return std::accumulate(sums, sums + lane_count, 0.0);
}

}  // namespace

std::vector<std::int32_t> replicate_by_peak(const Counts& counts, std::size_t slots) {
  std::vector<std::int32_t> experts(slots);
  std::iota(experts.begin(), experts.end(), 0);
  Replication replication(counts);
  for (std::size_t copy = counts.experts; copy < slots; ++copy) {
    experts[copy] = static_cast<std::int32_t>(replication.give_copy());
  }
  return experts;
}

std::vector<std::int32_t> pack_by_peak(const Counts& counts, const std::vector<std::int32_t>& experts,
                                       std::size_t ranks) {
  const std::size_t room = experts.size() / ranks;
  std::vector<std::int32_t> slot(experts.size());
  std::iota(slot.begin(), slot.end(), 0);
  if (room == 1) return slot;

  const CopyLoads loads(counts, experts);
  std::vector<std::int32_t> order = slot;
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const auto expert = [&](std::int32_t copy) { return static_cast<std::size_t>(experts[static_cast<std::size_t>(copy)]); };
    return loads.sums[expert(a)] > loads.sums[expert(b)];
  });

  std::vector<float> rank_loads(ranks * counts.steps, 0.0F), peak(counts.steps, 0.0F);
  std::vector<std::size_t> used(ranks, 0);
  for (const std::int32_t copy : order) {
    const float* load = loads.of(experts[static_cast<std::size_t>(copy)]);
    std::size_t best = ranks;
    double lowest = 0.0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (used[rank] == room) continue;
      const double sum = peak_sum(peak.data(), rank_loads.data() + rank * counts.steps, load, counts.steps);
      if (best == ranks || sum < lowest) {
        best = rank;
        lowest = sum;
      }
    }
    slot[static_cast<std::size_t>(copy)] = static_cast<std::int32_t>(best * room + used[best]++);
    float* chosen = rank_loads.data() + best * counts.steps;
    for (std::size_t step = 0; step < counts.steps; ++step) {
      chosen[step] += load[step];
      peak[step] = std::max(peak[step], chosen[step]);
    }
  }
  return slot;
}

}  // namespace thalweg::eplb
