#include "thalweg/scheduler/token_log.hpp"

#include <numeric>
#include <vector>

#include "check.hpp"

using thalweg::scheduler::TokenLog;

int main() {
  // Prompts and groups of every length around the inner ring's size: the log equals a plain vector.
  for (std::size_t prompt_length = 1; prompt_length < 80; ++prompt_length) {
    for (std::size_t group = 1; group <= 40; group += 3) {
      std::vector<std::int32_t> plain(prompt_length);
      std::iota(plain.begin(), plain.end(), 0);
      TokenLog log;
      log.assign(plain, prompt_length + 10);
      for (std::size_t step = 0; step < 12; ++step) {
        std::vector<std::int32_t> more(group);
        std::iota(more.begin(), more.end(), static_cast<std::int32_t>(plain.size()));
        log.append(more);
        plain.insert(plain.end(), more.begin(), more.end());
        CHECK(log.size() == static_cast<std::int32_t>(plain.size()));
        std::vector<std::int32_t> copy(plain.size());
        log.copy(0, log.size(), copy.data());
        CHECK(copy == plain);
      }
    }
  }
}
