#pragma once

#include <cstdio>
#include <cstdlib>

// A failed check ends the program with the place and the expression.
#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::exit(EXIT_FAILURE);                                                      \
    }                                                                               \
  } while (false)
