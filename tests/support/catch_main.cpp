#include "catch_run.h"

int main(int argc, char** argv) { return kvferry::test::run_tests(argc, argv); }
