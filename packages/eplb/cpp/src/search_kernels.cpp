#include "thalweg/eplb/search_kernels.hpp"

#include <limits>

#include "thalweg/eplb/lanes.hpp"

namespace thalweg::eplb {
namespace {

template <class Value>
THALWEG_INLINE Value to_smooth_power(const Value& load) {
  static_assert(smooth_power == 32);
  Value power = load * load;
  power *= power;
  power *= power;
  power *= power;
  power *= power;
  return power;
}

THALWEG_INLINE Lanes larger(const Lanes& left, const Lanes& right) { return left > right ? left : right; }

THALWEG_INLINE Lanes weight_of(const Lanes& peak, const Lanes& power_sum) {
  const Lanes none = {};
  return power_sum > none ? peak / (float{smooth_power} * power_sum) : none;
}

template <class IsBetter>
THALWEG_INLINE std::size_t first_place(const float* row, std::size_t length, const IsBetter& is_better) {
  Lanes best = lanes(row);
  IntLanes where = {0, 1, 2, 3, 4, 5, 6, 7};
  IntLanes here = where;
  for (std::size_t at = lane_count; at < length; at += lane_count) {
    here += static_cast<std::int32_t>(lane_count);
    const Lanes value = lanes(row + at);
    const auto replaces = is_better(value, best);
    best = replaces ? value : best;
    where = replaces ? here : where;
  }
  std::size_t lane = 0;
  const auto order = [&](std::size_t of) { return Lanes{} + best[of]; };
  for (std::size_t other = 1; other < lane_count; ++other)
    if (is_better(order(other), order(lane))[0] != 0 || (best[other] == best[lane] && where[other] < where[lane]))
      lane = other;
  return static_cast<std::size_t>(where[lane]);
}

}  // namespace

THALWEG_EACH_PROCESSOR void add_row(float* to, const float* row, std::size_t length) {
  for (std::size_t t = 0; t < length; t += lane_count) lanes(to + t) += lanes(row + t);
}

THALWEG_EACH_PROCESSOR void raise_row(float* to, const float* row, std::size_t length) {
  for (std::size_t t = 0; t < length; t += lane_count) lanes(to + t) = larger(lanes(to + t), lanes(row + t));
}

THALWEG_EACH_PROCESSOR float rise_with(const float* peak, const float* load, const float* share, std::size_t length,
                                       float enough) {
  constexpr std::size_t between_looks = 4 * row_multiple;
  Lanes even = {};
  Lanes odd = {};
  const auto rise_at = [&](std::size_t t) __attribute__((always_inline)) {
    return larger(lanes(load + t) + lanes(share + t) - lanes(peak + t), Lanes{});
  };
  for (std::size_t first = 0; first < length; first += between_looks) {
    for (std::size_t t = first; t < length && t < first + between_looks; t += row_multiple) {
      even += rise_at(t);
      odd += rise_at(t + lane_count);
    }
    if (const float rise = sum_of(even + odd); rise >= enough) return rise;
  }
  return sum_of(even + odd);
}

THALWEG_EACH_PROCESSOR float swap_change(const RankRows& i, const RankRows& j, const float* a, const float* b,
                                         const StepRows& steps, std::size_t length) {
  const float* load_i = i.load;
  const float* load_j = j.load;
  const float* power_i = i.power;
  const float* power_j = j.power;
  const float* inverse_peak = steps.inverse_peak;
  const float* weight = steps.weight;
  Lanes even = {};
  Lanes odd = {};
  const auto change_at = [&](std::size_t t) __attribute__((always_inline)) {
    const Lanes moved = (lanes(a + t) - lanes(b + t)) * lanes(inverse_peak + t);
    const Lanes after_i = to_smooth_power<Lanes>(lanes(load_i + t) - moved);
    const Lanes after_j = to_smooth_power<Lanes>(lanes(load_j + t) + moved);
    return Lanes(lanes(weight + t) * ((after_i + after_j) - (lanes(power_i + t) + lanes(power_j + t))));
  };
  for (std::size_t t = 0; t < length; t += row_multiple) {
    even += change_at(t);
    odd += change_at(t + lane_count);
  }
  even += odd;
  return sum_of(even);
}

THALWEG_EACH_PROCESSOR float apply_swap(const RankRows& i, const RankRows& j, const float* a, const float* b,
                                        const float* inverse_peak, const float* peak, float* power_sum, float* weight,
                                        std::size_t length, std::size_t num_steps) {
  for (std::size_t t = 0; t < length; t += lane_count) {
    const Lanes moved = (lanes(a + t) - lanes(b + t)) * lanes(inverse_peak + t);
    const Lanes load_i = lanes(i.load + t) - moved;
    const Lanes load_j = lanes(j.load + t) + moved;
    const Lanes after_i = to_smooth_power(load_i);
    const Lanes after_j = to_smooth_power(load_j);
    lanes(power_sum + t) += (after_i + after_j) - (lanes(i.power + t) + lanes(j.power + t));
    lanes(i.load + t) = load_i;
    lanes(j.load + t) = load_j;
    lanes(i.power + t) = after_i;
    lanes(j.power + t) = after_j;
    lanes(weight + t) = weight_of(lanes(peak + t), lanes(power_sum + t));
  }
  float least = std::numeric_limits<float>::infinity();
  for (std::size_t t = 0; t < num_steps; ++t)
    if (peak[t] > 0.0F && power_sum[t] < least) least = power_sum[t];
  return least;
}

THALWEG_EACH_PROCESSOR void normalise_rank(const RankRows& rank, const float* inverse_peak, float* power_sum,
                                           std::size_t length) {
  for (std::size_t t = 0; t < length; t += lane_count) {
    const Lanes load = lanes(rank.load + t) * lanes(inverse_peak + t);
    const Lanes power = to_smooth_power(load);
    lanes(rank.load + t) = load;
    lanes(rank.power + t) = power;
    lanes(power_sum + t) += power;
  }
}

THALWEG_EACH_PROCESSOR void weigh_steps(const float* peak, const float* power_sum, float* weight, std::size_t length) {
  for (std::size_t t = 0; t < length; t += lane_count)
    lanes(weight + t) = weight_of(lanes(peak + t), lanes(power_sum + t));
}

THALWEG_EACH_PROCESSOR void multiply_rows(const float* left, const float* right, float* to, std::size_t length) {
  for (std::size_t t = 0; t < length; t += lane_count) lanes(to + t) = lanes(left + t) * lanes(right + t);
}

THALWEG_EACH_PROCESSOR void scale_row(const float* row, const float* by, float scale, float* to, std::size_t length) {
  for (std::size_t e = 0; e < length; ++e) to[e] = row[e] * by[e] * scale;
}

THALWEG_EACH_PROCESSOR std::size_t largest_place(const float* row, std::size_t length) {
  return first_place(row, length, [](const Lanes& value, const Lanes& best) __attribute__((always_inline)) {
    return value > best;
  });
}

THALWEG_EACH_PROCESSOR std::size_t least_place(const float* row, std::size_t length) {
  return first_place(row, length, [](const Lanes& value, const Lanes& best) __attribute__((always_inline)) {
    return value < best;
  });
}

THALWEG_EACH_PROCESSOR void screen_swaps(const ScreenRows* views, std::size_t num_views, std::size_t ranks,
                                         std::size_t width, float* score) {
  for (std::size_t j = 0; j < ranks; ++j)
    for (std::size_t slot = j * width; slot < (j + 1) * width; slot += lane_count) {
      Lanes change = {};
      for (const ScreenRows* view = views; view < views + num_views; ++view) {
        const Lanes moved = view->given[j] - lanes(view->share + slot);
        const Lanes after_i = to_smooth_power<Lanes>(view->load_i[j] - moved);
        const Lanes after_j = to_smooth_power<Lanes>(view->load_j[j] + moved);
        change += view->weight[j] * ((after_i + after_j) - (view->power_i[j] + view->power_j[j]));
      }
      lanes(score + slot) = change;
    }
}

}  // namespace thalweg::eplb
