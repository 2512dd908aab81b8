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

void Splitter::split(std::size_t first, std::size_t count, const std::int32_t* tokens, int sweeps,
                     std::int32_t* shares) const {
  std::vector<std::int32_t> loads(num_ranks_);
  std::vector<Level> order(num_ranks_);
  for (std::size_t index = 0; index < count; ++index) {
    split_layer(layers_[first + index], tokens + index * num_experts_, sweeps, shares + index * num_slots_, loads,
                order);
  }
}

void Splitter::split_layer(const Layer& layer, const std::int32_t* tokens, int sweeps, std::int32_t* shares,
                           std::vector<std::int32_t>& loads, std::vector<Level>& order) const {
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

// Most experts have two or three copies, for which nothing is faster than moving them one by one.
void Splitter::sort(Level* begin, Level* end) {
  if (end - begin > 16) return std::sort(begin, end);
  for (Level* next = begin + 1; next < end; ++next) {
    const Level moving = *next;
    Level* hole = next;
    for (; hole > begin && moving < hole[-1]; --hole) *hole = hole[-1];
    *hole = moving;
  }
}

// Take one expert's tokens away and give them to its ranks again, lowest load first.
void Splitter::pour(std::int32_t tokens, const Place* places, std::size_t count, std::int32_t* shares,
                    std::int32_t* loads, Level* order) {
  const auto load_at = [&](std::size_t index) { return static_cast<std::int32_t>(order[index] >> 32); };
  for (std::size_t place = 0; place < count; ++place) {
    const std::int32_t load = loads[places[place].rank] -= shares[places[place].slot];
    order[place] = (static_cast<Level>(load) << 32) | place;
  }
  sort(order, order + count);
  std::int32_t volume = tokens + load_at(0);  // of the tokens and of what is below their surface
  std::int32_t wet = 1;
  for (; static_cast<std::size_t>(wet) < count && volume > std::int64_t{load_at(wet)} * wet; ++wet) {
    volume += load_at(wet);
  }
  const std::int32_t level = volume / wet, more = volume % wet;
  for (std::size_t index = 0; index < count; ++index) {
    const Place& place = places[order[index] & 0xffffffff];
    const auto position = static_cast<std::int32_t>(index);
    const std::int32_t share = position < wet ? level - load_at(index) + (position < more) : 0;
    shares[place.slot] = share;
    loads[place.rank] = load_at(index) + share;
  }
}

}  // namespace thalweg::eplb
