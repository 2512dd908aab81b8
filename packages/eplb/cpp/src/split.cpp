#include "thalweg/eplb/split.hpp"

#include <algorithm>

namespace thalweg::eplb {

Splitter::Splitter(const std::int32_t* logical_of_physical, std::size_t layers, std::size_t slots, std::size_t ranks,
                   std::size_t experts)
    : num_slots_(slots), num_ranks_(ranks), num_experts_(experts), layers_(layers) {
  const std::size_t slots_per_rank = slots / ranks;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<std::vector<Place>> places(experts);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const std::int32_t expert = logical_of_physical[layer * slots + slot];
      const auto rank = static_cast<std::int32_t>(slot / slots_per_rank);
      std::vector<Place>& own = places[static_cast<std::size_t>(expert)];
      if (!own.empty() && own.back().rank == rank) continue;  // a second copy on a rank takes no load off it
      own.push_back({expert, static_cast<std::int32_t>(slot), rank});
    }
    Layer& table = layers_[layer];
    for (const std::vector<Place>& own : places) {
      std::vector<Place>& all = own.size() == 1 ? table.alone : table.shared;
      all.insert(all.end(), own.begin(), own.end());
      if (own.size() > 1) table.first.push_back(all.size());
    }
  }
}

void Splitter::split(const std::int32_t* tokens, int sweeps, std::int32_t* shares) const {
  std::vector<std::int64_t> loads(num_ranks_);
  std::vector<Level> order(num_ranks_);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    split_layer(layers_[layer], tokens + layer * num_experts_, sweeps, shares + layer * num_slots_, loads, order);
  }
}

void Splitter::split_layer(const Layer& layer, const std::int32_t* tokens, int sweeps, std::int32_t* shares,
                           std::vector<std::int64_t>& loads, std::vector<Level>& order) const {
  std::fill_n(shares, num_slots_, 0);
  std::fill(loads.begin(), loads.end(), 0);
  for (const Place& place : layer.alone) {
    shares[place.slot] = tokens[place.expert];
    loads[place.rank] += tokens[place.expert];
  }
  const std::size_t num_shared = layer.first.size() - 1;
  for (std::size_t index = 0; index < num_shared; ++index) {  // evenly
    const Place* places = &layer.shared[layer.first[index]];
    const auto count = static_cast<std::int32_t>(layer.first[index + 1] - layer.first[index]);
    const std::int32_t each = tokens[places->expert] / count, more = tokens[places->expert] % count;
    for (std::int32_t copy = 0; copy < count; ++copy) {
      shares[places[copy].slot] = each + (copy < more);
      loads[places[copy].rank] += each + (copy < more);
    }
  }
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    for (std::size_t index = 0; index < num_shared; ++index) {
      const Place* places = &layer.shared[layer.first[index]];
      pour(tokens[places->expert], places, layer.first[index + 1] - layer.first[index], shares, loads.data(),
           order.data());
    }
  }
}

// By load, equal ones by rank. Most experts have two or three copies, for which nothing is faster.
void Splitter::sort(Level* begin, Level* end) {
  const auto is_lower = [](const Level& one, const Level& other) {
    return one.load < other.load || (one.load == other.load && one.place < other.place);
  };
  if (end - begin > 16) return std::sort(begin, end, is_lower);
  for (Level* next = begin + 1; next < end; ++next) {
    const Level moving = *next;
    Level* hole = next;
    for (; hole > begin && is_lower(moving, hole[-1]); --hole) *hole = hole[-1];
    *hole = moving;
  }
}

// Take one expert's tokens away and give them to its ranks again, lowest load first.
void Splitter::pour(std::int64_t tokens, const Place* places, std::size_t count, std::int32_t* shares,
                    std::int64_t* loads, Level* order) {
  for (std::size_t place = 0; place < count; ++place) {
    order[place] = {loads[places[place].rank] -= shares[places[place].slot], place};
  }
  sort(order, order + count);
  std::int64_t volume = tokens + order[0].load;  // of the tokens and of what is below their surface
  std::int64_t wet = 1;
  for (; static_cast<std::size_t>(wet) < count && volume > order[wet].load * wet; ++wet) volume += order[wet].load;
  const std::int64_t level = volume / wet, more = volume % wet;
  for (std::int64_t index = 0; index < static_cast<std::int64_t>(count); ++index) {
    const auto [load, place] = order[index];
    const std::int64_t share = index < wet ? level - load + (index < more) : 0;
    shares[places[place].slot] = static_cast<std::int32_t>(share);
    loads[places[place].rank] = load + share;
  }
}

}  // namespace thalweg::eplb
