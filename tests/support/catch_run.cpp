#include "catch_run.h"

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

int kvferry::test::run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }
