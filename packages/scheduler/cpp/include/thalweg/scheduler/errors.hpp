#pragma once

#include <stdexcept>

namespace thalweg::scheduler {

// An option has a value that is not supported.
struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// One request is bad; it fails alone.
struct RequestError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A pool cannot serve what was asked, now or ever.
struct CapacityError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Another thread kept something locked for far too long.
struct LockTimeoutError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Our own bookkeeping is wrong.
struct InvariantError : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace thalweg::scheduler
