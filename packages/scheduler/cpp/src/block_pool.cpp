#include "thalweg/scheduler/block_pool.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {
namespace {

void check_count(std::int64_t count) {
  if (count < 0)
    throw std::invalid_argument("cannot allocate " + std::to_string(count) + " blocks; the count must be 0 or more");
}

}  // namespace

BlockPool::BlockPool(std::int32_t capacity) : capacity_(capacity), num_free_(0) {
  if (capacity < 1) throw ConfigError("capacity is " + std::to_string(capacity) + "; it must be at least 1");
  ring_.resize(static_cast<std::size_t>(capacity));
  references_.resize(static_cast<std::size_t>(capacity), 0);
  for (std::int32_t id = 1; id < capacity; ++id) push_free(id);
}

Fit BlockPool::can_allocate(std::int64_t count) const {
  check_count(count);
  if (count >= capacity_) return Fit::never;
  return num_free() >= count ? Fit::ok : Fit::later;
}

bool BlockPool::try_allocate(std::span<std::int32_t> out) {
  const std::lock_guard lock(mutex_);
  const std::int32_t free = num_free();
  if (out.size() > static_cast<std::size_t>(free)) return false;
  for (std::int32_t& id : out) {
    id = ring_[head_];
    if (++head_ == ring_.size()) head_ = 0;
    references_[static_cast<std::size_t>(id)] = 1;
  }
  num_free_.store(free - static_cast<std::int32_t>(out.size()), std::memory_order_relaxed);
  return true;
}

std::vector<std::int32_t> BlockPool::allocate(std::int64_t count) {
  check_count(count);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min<std::int64_t>(count, capacity_)));
  if (!try_allocate(ids))
    throw CapacityError("need " + std::to_string(count) + " blocks, " + std::to_string(num_free()) + " are free");
  return ids;
}

void BlockPool::release(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) check_id(id);
  const std::lock_guard lock(mutex_);
  const std::int32_t free_before = num_free();
  for (std::size_t i = ids.size(); i-- > 0;) {
    std::int32_t& references = references_[static_cast<std::size_t>(ids[i])];
    if (references == 0) undo_release(ids, i, free_before);
    if (--references == 0) push_free(ids[i]);
  }
}

// Id `failed_at` had no holder left: restore those after it, which came first, and say why.
void BlockPool::undo_release(std::span<const std::int32_t> ids, std::size_t failed_at, std::int32_t free_before) {
  for (std::size_t i = failed_at + 1; i < ids.size(); ++i) ++references_[static_cast<std::size_t>(ids[i])];
  num_free_.store(free_before, std::memory_order_relaxed);
  const std::int32_t id = ids[failed_at];
  throw std::invalid_argument("block " + std::to_string(id) + " is released " +
                              std::to_string(std::count(ids.begin(), ids.end(), id)) + " times, it has " +
                              std::to_string(references_[static_cast<std::size_t>(id)]));
}

void BlockPool::pin(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) check_id(id);
  const std::lock_guard lock(mutex_);
  for (const std::int32_t id : ids)
    if (references_[static_cast<std::size_t>(id)] == 0)
      throw CapacityError("block " + std::to_string(id) + " is free and cannot be pinned");
  for (const std::int32_t id : ids) ++references_[static_cast<std::size_t>(id)];
}

std::vector<std::int32_t> BlockPool::free_ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int32_t> ids;
  const auto count = static_cast<std::size_t>(num_free());
  for (std::size_t i = 0; i < count; ++i) ids.push_back(ring_[(head_ + i) % ring_.size()]);
  return ids;
}

void BlockPool::check_id(std::int32_t id) const {
  if (id < 1 || id >= capacity_)
    throw std::invalid_argument("block " + std::to_string(id) + " does not exist; ids go from 1 to " +
                                std::to_string(capacity_ - 1));
}

// Needs the lock, or a pool that nobody else sees yet.
void BlockPool::push_free(std::int32_t id) {
  const std::int32_t free = num_free();
  std::size_t tail = head_ + static_cast<std::size_t>(free);
  if (tail >= ring_.size()) tail -= ring_.size();
  ring_[tail] = id;
  num_free_.store(free + 1, std::memory_order_relaxed);
}

}  // namespace thalweg::scheduler
