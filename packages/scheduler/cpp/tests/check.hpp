#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

// A failed check ends the program with the place and the expression.
#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::exit(EXIT_FAILURE);                                                    \
    }                                                                             \
  } while (false)

// `call` throws `Error` and its message contains `text`.
template <class Error, class Call>
void check_throws(Call call, const std::string& text) {
  try {
    call();
  } catch (const Error& error) {
    if (std::string(error.what()).find(text) != std::string::npos) return;
    std::fprintf(stderr, "the message is \"%s\", it should contain \"%s\"\n", error.what(), text.c_str());
    std::exit(EXIT_FAILURE);
  }
  std::fprintf(stderr, "nothing was thrown, expected \"%s\"\n", text.c_str());
  std::exit(EXIT_FAILURE);
}
