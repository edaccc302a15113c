// What a refusal must say.
#pragma once

#include <catch2/catch.hpp>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kvferry/result.h"

namespace kvferry::test {

/// The result is an error whose text has every one of `words` (names, values, numbers), in any order.
template <class Value>
void check_refused(const Result<Value>& result, std::initializer_list<std::string_view> words) {
  REQUIRE_FALSE(result.has_value());
  const std::string& text = result.error().text;
  INFO(text);
  CHECK(text.find('\n') == std::string::npos);
  CHECK(text.back() != '.');
  for (const std::string_view word : words) {
    INFO("must have: " << word);
    CHECK(text.find(word) != std::string::npos);
  }
}

}  // namespace kvferry::test
