#include "thalweg/scheduler/pool_mutex.hpp"

#include <string>

#include "thalweg/scheduler/errors.hpp"

namespace thalweg::scheduler {

void PoolMutex::lock_slowly() {
  if (mutex_.try_lock_for(patience_)) return;
  throw LockTimeoutError("the pool was locked by another thread for " + std::to_string(patience_.count()) + " ms");
}

}  // namespace thalweg::scheduler
