#include "header_layout.h"

/* A translation unit must not be empty in C. */
extern const int kvferry_header_is_c11;
const int kvferry_header_is_c11 = 1;
