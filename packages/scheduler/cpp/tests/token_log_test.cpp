#include "thalweg/scheduler/token_log.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "check.hpp"

using thalweg::scheduler::TokenLog;

void groups_of_which_only_some_tokens_count() {
  for (std::size_t width = 1; width <= 12; ++width) {
    std::vector<std::int32_t> plain(5, 3);
    TokenLog log;
    log.assign(plain);
    for (std::int32_t step = 0; step < 200; ++step) {
      std::vector<std::int32_t> group(width);
      std::iota(group.begin(), group.end(), 1000 * step);
      const auto count = static_cast<std::int32_t>(static_cast<std::size_t>(step * 7 % 13) % (width + 1));
      log.append(group, count);
      plain.insert(plain.end(), group.begin(), group.begin() + count);
      std::vector<std::int32_t> copy(plain.size());
      log.copy(0, log.size(), copy.data());
      CHECK(copy == plain);
      for (std::int32_t at = 0; at < log.size(); ++at) CHECK(log[at] == plain[static_cast<std::size_t>(at)]);
    }
  }
}

void long_texts_lie_in_many_chunks() {
  for (const std::size_t prompt_length : {1023u, 1024u, 1025u, 5000u}) {
    std::vector<std::int32_t> plain(prompt_length);
    std::iota(plain.begin(), plain.end(), 0);
    TokenLog log;
    log.assign(plain);
    for (std::int32_t step = 0; step < 700; ++step) {
      const std::vector<std::int32_t> group(6, step);
      log.append(group, 1 + step % 6);
      plain.insert(plain.end(), group.begin(), group.begin() + 1 + step % 6);
    }
    for (const std::int32_t begin : {0, 1000, 1024, 2040}) {
      std::vector<std::int32_t> copy(plain.size() - static_cast<std::size_t>(begin));
      log.copy(begin, log.size() - begin, copy.data());
      CHECK(std::equal(copy.begin(), copy.end(), plain.begin() + begin));
    }
  }
}

int main() {
  long_texts_lie_in_many_chunks();
  groups_of_which_only_some_tokens_count();
  // Prompts and groups of every length around the inner ring's size: the log equals a plain vector.
  for (std::size_t prompt_length = 1; prompt_length < 80; ++prompt_length) {
    for (std::size_t group = 1; group <= 40; group += 3) {
      std::vector<std::int32_t> plain(prompt_length);
      std::iota(plain.begin(), plain.end(), 0);
      TokenLog log;
      log.assign(plain);
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
