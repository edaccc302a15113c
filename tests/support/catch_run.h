/// Catch2's runner, compiled once for all test programs.
#pragma once

namespace kvferry::test {

/// What Catch2's own main does; 0: every test passed.
int run_tests(int argc, char** argv);

}  // namespace kvferry::test
