#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "thalweg/scheduler/pool_mutex.hpp"

namespace thalweg::scheduler {

// Values of thalweg.interfaces.Fit.
enum class Fit : int { never = 0, later = 1, ok = 2 };

// Reference-counted pool of ids 1..capacity-1, for blocks and for state slots; id 0 means none and is never handed out.
//
// The free ids form a first-in first-out queue, ascending at the start. Every member is safe from any thread;
// one that does not get the lock for 20 seconds throws LockTimeoutError.
class BlockPool {
 public:
  // Throws ConfigError for a capacity below 1.
  explicit BlockPool(std::int32_t capacity);

  // Number of ids, the null id 0 included.
  std::int32_t capacity() const noexcept { return capacity_; }
  std::int32_t num_free() const noexcept { return num_free_.load(std::memory_order_relaxed); }

  // Throws std::invalid_argument for a negative count, as `allocate` does.
  Fit can_allocate(std::int64_t count) const;

  // Fill `out` with ids from the head of the queue; false, and nothing taken, when fewer are free.
  bool try_allocate(std::span<std::int32_t> out);

  // `count` ids for callers that count on them. Throws CapacityError.
  std::vector<std::int32_t> allocate(std::int64_t count);

  // Take one holder off each id, last id first; an id without holders is free again. All or nothing: throws
  // std::invalid_argument for an id that has too few holders or is outside the pool.
  void release(std::span<const std::int32_t> ids);

  // Add a holder to each id. All or nothing: throws std::invalid_argument or, for a free id, CapacityError.
  void pin(std::span<const std::int32_t> ids);

  // Free ids in the order in which they will be handed out.
  std::vector<std::int32_t> free_ids() const;

 private:
  void check_id(std::int32_t id) const;
  void undo_release(std::span<const std::int32_t> ids, std::size_t failed_at, std::int32_t free_before);
  void push_free(std::int32_t id);

  const std::int32_t capacity_;
  mutable PoolMutex mutex_;
  std::vector<std::int32_t> ring_;        // the queue of free ids: num_free_ entries from head_ on, cyclic
  std::vector<std::int32_t> references_;  // per id
  std::size_t head_ = 0;
  std::atomic<std::int32_t> num_free_;
};

}  // namespace thalweg::scheduler
