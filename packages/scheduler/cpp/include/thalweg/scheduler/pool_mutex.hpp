#pragma once

#include <chrono>
#include <mutex>

namespace thalweg::scheduler {

// The lock of a pool. Holders keep it for microseconds; a thread that does not get it for very long gives up instead of
// hanging, because somebody died holding it.
class PoolMutex {
 public:
  using Duration = std::chrono::milliseconds;

  explicit PoolMutex(Duration patience = std::chrono::seconds(20)) : patience_(patience) {}

  // Throws LockTimeoutError when others held it all the time.
  void lock() {
    if (!mutex_.try_lock()) lock_slowly();
  }

  void unlock() { mutex_.unlock(); }

 private:
  void lock_slowly();

  std::timed_mutex mutex_;
  const Duration patience_;
};

}  // namespace thalweg::scheduler
