#include "header_layout.h"
