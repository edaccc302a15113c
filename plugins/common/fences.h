// Which rooms are refused.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace kvferry::plugins {

/// Rooms with the highest generation of each that is refused.
class Fences {
 public:
  void add(std::uint64_t room, std::uint32_t generation) {
    std::uint32_t& highest = rooms_.try_emplace(room, generation).first->second;
    if (generation > highest) highest = generation;
  }
  bool holds(std::uint64_t room, std::uint32_t generation) const {
    if (rooms_.empty()) return false;
    const auto found = rooms_.find(room);
    return found != rooms_.end() && generation <= found->second;
  }
  const std::unordered_map<std::uint64_t, std::uint32_t>& all() const noexcept { return rooms_; }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> rooms_;
};

}  // namespace kvferry::plugins
