#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include "thalweg/scheduler/sequence.hpp"

namespace thalweg::scheduler {

// Owns the sequences and finds them by id. Records and block tables each lie close together, wherever the heap has
// room: every step visits them all. Addresses are stable.
class SequenceStore {
 public:
  // A fresh sequence with the next id.
  Sequence& create() {
    Sequence* sequence;
    if (vacant_.empty()) {
      sequence = &storage_.emplace_back(&block_tables_);
    } else {
      sequence = vacant_.back();
      vacant_.pop_back();
    }
    sequence->id = next_id_++;
    by_id_.emplace(sequence->id, sequence);
    return *sequence;
  }

  // nullptr when there is no such sequence, or no more.
  Sequence* find(std::int64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
  }

  void destroy(Sequence& sequence) {
    by_id_.erase(sequence.id);
    std::destroy_at(&sequence);
    std::construct_at(&sequence, &block_tables_);
    vacant_.push_back(&sequence);
  }

  std::size_t size() const noexcept { return by_id_.size(); }

  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [id, sequence] : by_id_) visit(*sequence);
  }

 private:
  std::pmr::unsynchronized_pool_resource block_tables_;
  std::deque<Sequence> storage_;
  std::vector<Sequence*> vacant_;
  std::unordered_map<std::int64_t, Sequence*> by_id_;
  std::int64_t next_id_ = 0;
};

}  // namespace thalweg::scheduler
