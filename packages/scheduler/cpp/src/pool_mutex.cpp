#include "thalweg/scheduler/pool_mutex.hpp"

#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {

void PoolMutex::lock_slowly() {
#ifdef __SANITIZE_THREAD__  // gcc's ThreadSanitizer sees no lock in try_lock_for, which waits by the steady clock
  if (mutex_.try_lock_until(std::chrono::system_clock::now() + patience_)) return;
#else
  if (mutex_.try_lock_for(patience_)) return;
#endif
  throw LockTimeoutError("the pool was locked by another thread for " + std::to_string(patience_.count()) + " ms");
}

}  // namespace thalweg::scheduler
